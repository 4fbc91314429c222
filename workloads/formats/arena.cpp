// Requests for many LoRA adapters in the manner of the chatbot arena (S-LoRA, Prism).
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat arena() {
  FlatFormat format;
  format.name = "arena";
  format.about = "multi-adapter traces of S-LoRA and Prism; seconds";
  format.required = {"req_time", "prompt_len", "output_len"};
  format.arrival = "req_time";
  format.input = "prompt_len";
  format.output = "output_len";
  format.id = "req_id";
  format.adapter = "adapter_dir";
  return format;
}

}  // namespace oomcast::workloads::formats
