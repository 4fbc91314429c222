#include <cmath>

#include "sim/run/plan.hpp"

namespace oomcast {
namespace {

// Two digits like the engine's log, but kept as numbers with enough digits to compute with.
OrderedJson gib(const std::optional<Bytes>& bytes) {
  return bytes ? OrderedJson(std::round(to_gib(*bytes) * 1e6) / 1e6) : OrderedJson(nullptr);
}

OrderedJson report_json(const EngineReport& report) {
  OrderedJson json;
  json["total_gib"] = gib(report.total);
  json["weights_gib"] = gib(report.weights);
  json["activation_peak_gib"] = gib(report.activation_peak);
  json["non_torch_gib"] = gib(report.non_torch);
  json["consumed_gib"] = gib(report.consumed);
  json["cudagraph_gib"] = gib(report.cudagraph);
  json["cudagraph_estimate_gib"] = gib(report.cudagraph_estimate);
  json["available_kv_gib"] = gib(report.available_kv);
  json["kv_tokens"] = or_null(report.kv_tokens);
  json["kv_blocks"] = or_null(report.kv_blocks);
  json["block_size"] = or_null(report.block_size);
  json["max_concurrency"] = report.max_concurrency
                                ? OrderedJson(std::round(*report.max_concurrency * 100) / 100)
                                : OrderedJson(nullptr);
  json["max_running_requests"] = or_null(report.max_running_requests);
  json["avail_after_load_gib"] = gib(report.available_after_load);
  json["avail_after_pool_gib"] = gib(report.available_after_pool);
  json["avail_mem_after_gib"] = gib(report.available_at_end);
  json["swa_tokens"] = or_null(report.window_tokens);
  json["draft_weights_gib"] = gib(report.draft_weights);
  json["state_pool_gib"] = gib(report.state_pool);
  json["state_slots"] = or_null(report.state_slots);
  json["state_blocks"] = or_null(report.state_blocks);
  json["kv_needed_gib"] = gib(report.kv_needed);
  json["est_max_model_len"] = or_null(report.longest_that_fits);
  return json;
}

// Classes at `ready`; runtime and workspace leaves show the profile run's peak.
OrderedJson classes_json(const RankState& state) {
  OrderedJson json;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    json[std::string(kLeafNames[leaf])] = shown_at_ready(state, static_cast<Leaf>(leaf)).count();
  }
  return json;
}

OrderedJson rank_json(const EngineDeployment& deployment, const RankState& state, int rank) {
  OrderedJson json;
  json["rank"] = rank;
  json["role"] = "mixed";
  json["total_bytes"] = deployment.device_total().count();
  json["phases"] = OrderedJson::array();
  for (const PhaseRecord& phase : state.phases) {
    OrderedJson entry;
    entry["phase"] = phase.name;
    entry["device_used_bytes"] = phase.views.device_used.count();
    entry["device_peak_bytes"] = phase.device_peak.count();
    entry["torch_allocated_bytes"] = phase.views.torch_allocated.count();
    entry["torch_reserved_bytes"] = phase.views.torch_reserved.count();
    json["phases"].push_back(std::move(entry));
  }
  json["classes"] = classes_json(state);
  json["at_ready"] = OrderedJson::object();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    json["at_ready"][std::string(kLeafNames[leaf])] =
        state.memory.ledger().device_by_leaf()[leaf].count();
  }
  json["pinned_host_bytes"] = state.memory.ledger().views().pinned_host.count();
  json["pinned_host"] = OrderedJson::object();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    const Bytes pinned = state.memory.ledger().at(static_cast<Leaf>(leaf), Backing::kPinnedHost);
    if (pinned > Bytes{0}) {
      json["pinned_host"][std::string(kLeafNames[leaf])] = pinned.count();
    }
  }
  OrderedJson witness;
  witness["moment"] = state.profile_peak.moment;
  witness["tensors"] = OrderedJson::array();
  for (const opgraph::LiveTensor& tensor : state.profile_peak.tensors) {
    OrderedJson entry;
    entry["name"] = tensor.name;
    entry["formula"] = tensor.formula;
    entry["class"] = name_of(tensor.leaf);
    entry["bytes"] = tensor.bytes.count();
    witness["tensors"].push_back(std::move(entry));
  }
  json["profile_peak"] = std::move(witness);
  json["graphs"] = OrderedJson::array();
  for (const CapturedGraph& graph : state.graphs) {
    OrderedJson entry;
    entry["mode"] = graph.mode;
    entry["size"] = graph.size;
    entry["pool_growth_bytes"] = graph.pool_growth.count();
    entry["driver_bytes"] = graph.driver.count();
    json["graphs"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

OrderedJson outcome_json(const Outcome& outcome) {
  OrderedJson json;
  json["fits"] = outcome.fits();
  json["kind"] = name_of(outcome.kind);
  json["phase"] = outcome.phase.empty() ? OrderedJson(nullptr) : OrderedJson(outcome.phase);
  json["rank"] = or_null(outcome.rank);
  json["class"] = outcome.leaf ? OrderedJson(name_of(*outcome.leaf)) : OrderedJson(nullptr);
  json["short_by_bytes"] = outcome.short_by.count();
  json["message"] = outcome.message;
  json["fixes"] = OrderedJson::array();
  for (const Fix& fix : outcome.fixes) {
    OrderedJson entry;
    entry["change"] = fix.change;
    entry["frees_bytes"] = fix.frees.count();
    json["fixes"].push_back(std::move(entry));
  }
  return json;
}

OrderedJson plan_json(const Plan& plan) {
  const EngineDeployment& deployment = plan.deployment();
  const std::vector<const RankState*> ranks = plan.ranks();
  OrderedJson json;
  json["schema"] = "oomcast.plan/1";
  json["engine"] = launch::to_string(deployment.launch.engine);
  json["engine_version"] = to_string(deployment.launch.version);
  json["model"] = deployment.launch.model;
  json["gpu"] = deployment.gpu.name;
  json["world"] = {
      {"tp", deployment.tp}, {"pp", deployment.pp}, {"dp", deployment.dp}, {"ep", deployment.ep}};
  json["ranks"] = OrderedJson::array();
  for (const RankState* state : ranks) {
    for (int i = 0; i < state->ranks; ++i) {
      json["ranks"].push_back(rank_json(deployment, *state, state->first_rank + i));
    }
  }
  json["engine_report"] = report_json(plan.report());
  if (deployment.exchange.kind != Exchange::kNone) {
    json["experts"] = deployment.exchange.json();
  }
  json["kv_groups"] = ranks.empty() ? 0 : ranks.front()->kv_groups;
  json["outcome"] = outcome_json(plan.outcome());
  json["assumptions"] = deployment.assumptions;
  json["warnings"] = deployment.warnings;
  json["notes"] = deployment.launch.notes;
  return json;
}

OrderedJson config_json(const EngineDeployment& deployment) {
  OrderedJson json;
  json["schema"] = "oomcast.config/1";
  json["launch"] = launch::to_json(deployment.launch);
  OrderedJson resolved;
  resolved["model"] = deployment.model->name;
  resolved["architecture"] = deployment.model->architecture;
  resolved["gpu"] = deployment.gpu.name;
  resolved["device_total_bytes"] = deployment.device_total().count();
  resolved["tensor_parallel"] = deployment.tp;
  resolved["pipeline_parallel"] = deployment.pp;
  resolved["dtype"] = models::name_of(deployment.dtype);
  resolved["kv_cache_dtype"] = models::name_of(deployment.kv_dtype);
  resolved["max_model_len"] = deployment.max_model_len.count();
  resolved.update(deployment.resolved());
  json["resolved"] = std::move(resolved);
  json["assumptions"] = deployment.assumptions;
  json["warnings"] = deployment.warnings;
  return json;
}

}  // namespace oomcast
