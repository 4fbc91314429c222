// Recorded samples are a document that can be fitted and written again, or one ConfigError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sim/core/error.hpp"
#include "sim/fit/probe_fit.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const fit::ProbeSamples samples = fit::parse_probe_samples(text, "fuzz.json");
    const std::string again = fit::probe_samples_json(samples).dump();
    OOMCAST_CHECK(
        fit::probe_samples_json(fit::parse_probe_samples(again, "again.json")).dump() == again,
        "written samples read differently");
    for (const fit::ProbeCoefficient& coefficient : fit::fit_probes({samples}).coefficients) {
      OOMCAST_CHECK(!coefficient.evidence.files.empty(), "a coefficient without evidence");
    }
  } catch (const ConfigError& error) {
    OOMCAST_CHECK(!error.problems().empty(), "an error without a problem");
  }
  return 0;
}
