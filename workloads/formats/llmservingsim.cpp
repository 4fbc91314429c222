// LLMServingSim's JSON lines, plain rows. Rows with sub_requests are read as sessions elsewhere.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat llmservingsim() {
  FlatFormat format;
  format.name = "llmservingsim";
  format.about = "LLMServingSim workloads; nanoseconds";
  format.required = {"input_toks", "output_toks", "arrival_time_ns"};
  format.is_json = true;
  format.arrival = "arrival_time_ns";
  format.arrival_unit = TimeUnit::kNanos;
  format.input = "input_toks";
  format.output = "output_toks";
  return format;
}

}  // namespace oomcast::workloads::formats
