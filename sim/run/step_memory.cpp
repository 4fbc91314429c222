#include "sim/run/step_memory.hpp"

#include "sim/run/allocator_steps.hpp"
#include "sim/run/class_steps.hpp"

namespace oomcast {

std::unique_ptr<StepMemory> make_step_memory(const vllm::Deployment& deployment,
                                             vllm::StageState& stage, Blocks blocks, Detail detail,
                                             bool remembers) {
  if (detail == Detail::kAllocator) {
    return std::make_unique<AllocatorSteps>(deployment, stage, blocks, remembers);
  }
  return std::make_unique<ClassSteps>(deployment, stage);
}

}  // namespace oomcast
