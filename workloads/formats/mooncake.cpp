// Mooncake (Kimi), and what aiperf adds to it. Milliseconds; an id names 512 tokens and everything
// before them, and the last id of a prompt may stand for fewer tokens.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat mooncake() {
  FlatFormat format;
  format.name = "mooncake";
  format.about = "Mooncake traces and aiperf's superset; milliseconds, 512-token block ids";
  // aiperf may leave out output_length: such rows are dropped and counted.
  format.required = {"timestamp", "input_length"};
  // Dialects with other meanings of the same keys: deltas per turn, branches, waits.
  format.forbidden = {"chat_id", "wait_for", "branches", "prefix_reset", "tool_wait_ms"};
  format.is_json = true;
  format.arrival = "timestamp";
  format.arrival_unit = TimeUnit::kMillis;
  format.input = "input_length";
  format.output = "output_length";
  format.session = "session_id";
  format.think = "delay";
  format.think_unit = TimeUnit::kMillis;
  format.priority = "priority";
  format.blocks = "hash_ids";
  format.block_size = 512;
  return format;
}

}  // namespace oomcast::workloads::formats
