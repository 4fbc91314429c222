#include "sim/logs/templates.hpp"

namespace oomcast::logs {

std::span<const Table> log_tables() {
  static const std::array<Table, 4> kTables = {{{launch::Engine::kVllm, vllm_rows()},
                                                {launch::Engine::kSglang, sglang_rows()},
                                                {launch::Engine::kTrtllm, trtllm_rows()},
                                                {std::nullopt, torch_rows()}}};
  return kTables;
}

}  // namespace oomcast::logs
