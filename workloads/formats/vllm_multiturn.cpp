// client_metrics of vLLM's multi-turn benchmark: every prompt holds the whole conversation so far,
// counted in messages.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat vllm_multiturn() {
  FlatFormat format;
  format.name = "vllm-multiturn";
  format.about = "client_metrics of vLLM's multi-turn benchmark; milliseconds";
  format.required = {"start_time_ms", "input_num_tokens", "output_num_tokens", "conversation_id"};
  format.arrival = "start_time_ms";
  format.arrival_unit = TimeUnit::kMillis;
  format.input = "input_num_tokens";
  format.output = "output_num_tokens";
  format.session = "conversation_id";
  format.turn = "input_num_turns";
  format.turn_counts_messages = true;
  format.session_is_content = true;
  return format;
}

}  // namespace oomcast::workloads::formats
