// Per-request results of InferenceX's replays of agent sessions. Generation ran free, so the actual
// output counts, not the trace's; rows stand in order of completion.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat inferencex() {
  FlatFormat format;
  format.name = "inferencex";
  format.about = "detailed_results of InferenceX multi-turn runs; epoch seconds";
  format.required = {"request_start_time", "input_tokens", "output_tokens_actual", "success"};
  format.arrival = "request_start_time";
  format.input = "input_tokens";
  format.output = "output_tokens_actual";
  format.session = "trace_id";
  format.session_is_content = true;  // prompts of a session grow by what came before
  format.think = "delay_actual";
  format.success = "success";
  return format;
}

}  // namespace oomcast::workloads::formats
