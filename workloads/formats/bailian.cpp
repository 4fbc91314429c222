// Qwen-Bailian (Aliyun): seconds, 16-token block ids, conversations by chat_id and parent_chat_id.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat bailian() {
  FlatFormat format;
  format.name = "bailian";
  format.about = "Qwen-Bailian usage traces; seconds, 16-token block ids";
  format.required = {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"};
  format.is_json = true;
  format.arrival = "timestamp";
  format.input = "input_length";
  format.output = "output_length";
  format.id = "chat_id";
  format.parent = "parent_chat_id";
  format.turn = "turn";
  format.blocks = "hash_ids";
  format.block_size = 16;
  return format;
}

}  // namespace oomcast::workloads::formats
