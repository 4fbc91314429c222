// Quantities as people write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/core/units.hpp"

namespace oomcast {

// "80GiB", "1.5g", "512 MB", "4096". KiB/MiB/GiB/TiB and the bare letters k/m/g/t are powers of
// 1024; KB/MB/GB/TB are powers of 1000; no suffix is bytes. Letters are case-blind. Fractions are
// rounded to the nearest byte. Negative, non-finite or oversized values give nullopt.
std::optional<Bytes> parse_bytes(std::string_view text);

// "8192", "8k", "2.5K", "1m": k/m/g (lower or upper) multiply by 1000 when lower-case and by 1024
// when upper-case, as vLLM reads human-readable integers; the result must be whole.
std::optional<std::int64_t> parse_count(std::string_view text);

// A finite decimal number, the whole text.
std::optional<double> parse_number(std::string_view text);

// "14.96 GiB", "512.0 MiB", "96 B": the largest unit that keeps the value at or above 1.
std::string format_bytes(Bytes bytes);
// "476,016"
std::string format_count(std::int64_t count);
// "3m 12s", "18.4 ms"
std::string format_span(Nanos span);
// Seconds with nanosecond digits, exact: "12.000000500". For files.
std::string format_seconds(Nanos span);

}  // namespace oomcast
