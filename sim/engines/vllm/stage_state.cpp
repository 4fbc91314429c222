#include "sim/engines/vllm/stage_state.hpp"

namespace oomcast::vllm {

StageState::StageState(const Deployment& deployment, int stage_number)
    : RankState(deployment.device_total(), stage_number * deployment.tp, deployment.tp,
                deployment.allocator_settings),
      stage(stage_number),
      role(role_of(deployment, stage_number)),
      kv(deployment.kv_layout(stage_number)) {
  kv_groups = static_cast<int>(kv.groups.size());
}

}  // namespace oomcast::vllm
