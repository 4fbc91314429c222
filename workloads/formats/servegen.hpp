// ServeGen (Alibaba Cloud): clients as distributions, in a tar archive. Per client a file of
// arrival windows, `chunk-ID-trace.csv` (start s, rate, cv, "Gamma" | "Weibull" | "", shape,
// scale s; no header), and one of length distributions, `chunk-ID-dataset.json` (window start ->
// field -> a Python dict literal {value: probability} as text).
//
// Choices made here: arrivals are renewal processes with the given shape and scale that start anew
// at each window, and windows are not rescaled to an exact count; every field of a request is drawn
// independently, so that the marginals hold and correlations do not; the prompt is the sum of its
// text, image, audio and video tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "workloads/byte_source.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::workloads::formats {

inline constexpr const char* kServegenName = "servegen";
inline constexpr std::size_t kTarHeaderBytes = 512;

struct ServegenWindow {
  std::int64_t start_seconds = 0;
  std::int64_t duration_seconds = INT64_MAX;
};

// Do these bytes begin a tar archive?
bool is_tar(std::string_view head);

std::unique_ptr<RequestStream> open_servegen(LineReader& archive, const ServegenWindow& window,
                                             std::uint64_t seed);

}  // namespace oomcast::workloads::formats
