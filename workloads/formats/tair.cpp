// Tair KV cache optimizer traces: microseconds, one key a block.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat tair() {
  FlatFormat format;
  format.name = "tair";
  format.about = "Tair KV cache optimizer traces; microseconds, 16-token block keys";
  format.required = {"timestamp_us", "keys", "input_len", "output_len"};
  format.is_json = true;
  format.arrival = "timestamp_us";
  format.arrival_unit = TimeUnit::kMicros;
  format.input = "input_len";
  format.output = "output_len";
  format.id = "trace_id";
  format.blocks = "keys";
  format.block_size = 16;
  return format;
}

}  // namespace oomcast::workloads::formats
