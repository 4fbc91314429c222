// Azure's public traces: 2023 and 2024 (one header for both), and 2025 with images.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat azure() {
  FlatFormat format;
  format.name = "azure";
  format.about = "Azure LLM inference 2023/2024, multimodal 2025; date and time, UTC";
  format.required = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
  format.arrival = "TIMESTAMP";
  format.arrival_unit = TimeUnit::kDateTime;
  format.input = "ContextTokens";
  format.output = "GeneratedTokens";
  return format;
}

}  // namespace oomcast::workloads::formats
