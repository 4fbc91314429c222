// The scripted workers of a recording with a KV connector.
#include <algorithm>

#include "tests/golden/vllm_scenario.hpp"

namespace oomcast::golden {

void ScriptedWorkers::receive(const vllm::Receive& receive, std::int64_t step) {
  const ScenarioRequest& request = scenario_.requests[receive.id];
  const std::vector<std::int64_t>& delays = scenario_.script.receive_delays;
  const std::int64_t delay =
      request.receive_delay ? *request.receive_delay : delays[receives_++ % delays.size()];
  Pending pending{Pending::Kind::kReceive, step + delay, {receive.id, false, {}}, 0};
  pending.received.failed = request.receive_fails;
  const vllm::BlockIds& pulled = receive.blocks.front();
  for (const std::size_t bad : request.bad_blocks) {
    if (bad < pulled.size()) {
      pending.received.bad_blocks.push_back(pulled[bad]);
    }
  }
  pending_.push_back(pending);
}

void ScriptedWorkers::send(RequestId id, std::int64_t step) {
  const ScenarioRequest& request = scenario_.requests[id];
  const std::vector<std::int64_t>& delays = scenario_.script.send_delays;
  const std::int64_t delay =
      request.send_delay ? *request.send_delay : delays[sends_++ % delays.size()];
  const std::int64_t lease = scenario_.script.lease_steps;
  const std::int64_t held = delay == TransferScript::kNever ? lease : std::min(delay, lease);
  pending_.push_back({Pending::Kind::kSend, step + held, {id, false, {}}, 0});
}

void ScriptedWorkers::start(const vllm::StepTransfers& transfers, std::int64_t step) {
  for (const vllm::Receive& one : transfers.receives) {
    receive(one, step);
  }
  for (const RequestId id : transfers.sends) {
    send(id, step);
  }
  const auto delay_of = [](const std::vector<std::int64_t>& delays, vllm::JobId job) {
    return delays[static_cast<std::size_t>(job) % delays.size()];
  };
  for (const vllm::LoadJob& load : transfers.loads) {
    const std::int64_t delay =
        load.synchronous ? 0 : delay_of(scenario_.script.load_delays, load.job);
    pending_.push_back({load.synchronous ? Pending::Kind::kJob : Pending::Kind::kLoad,
                        step + delay,
                        {load.id, false, {}},
                        load.job});
  }
  for (const vllm::StoreJob& store : transfers.stores) {
    pending_.push_back({Pending::Kind::kJob,
                        step + delay_of(scenario_.script.store_delays, store.job),
                        {},
                        store.job});
  }
  for (const vllm::JobId job : transfers.flushes) {
    for (Pending& pending : pending_) {
      const bool is_job =
          pending.kind == Pending::Kind::kJob || pending.kind == Pending::Kind::kLoad;
      if (is_job && pending.job == job) {
        pending.due = std::min(pending.due, step);
      }
    }
  }
}

const vllm::TransferReport& ScriptedWorkers::report(std::int64_t step) {
  report_.clear();
  received_.clear();
  std::erase_if(pending_, [&](const Pending& pending) {
    if (pending.due > step) {
      return false;
    }
    switch (pending.kind) {
      case Pending::Kind::kReceive:
        report_.received.push_back(pending.received);
        break;
      case Pending::Kind::kSend:
        report_.sent.push_back(pending.received.id);
        break;
      case Pending::Kind::kLoad:
      case Pending::Kind::kJob:
        report_.jobs.push_back(pending.job);
        break;
    }
    if (pending.kind == Pending::Kind::kReceive || pending.kind == Pending::Kind::kLoad) {
      received_.push_back(pending.received);
    }
    return true;
  });
  return report_;
}

}  // namespace oomcast::golden
