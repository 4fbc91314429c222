#include "sim/run/explain_peak.hpp"

#include <algorithm>
#include <sstream>
#include <vector>

#include "sim/engines/vllm/step_program.hpp"

namespace oomcast {
namespace {

constexpr int kColumns = 48;
constexpr std::int64_t kSmallestShare = 200;  // tensors below 1/200 of the peak are not drawn

bool is_sampler(const opgraph::OpGraph::OpInfo& op) { return op.scope == "sampler"; }

OrderedJson moment_json(const char* of, const opgraph::LiveSet& set) {
  OrderedJson json;
  json["of"] = of;
  json["op"] = set.moment;
  json["bytes"] = set.bytes().count();
  json["tensors"] = OrderedJson::array();
  for (const opgraph::LiveTensor& tensor : set.tensors) {
    OrderedJson entry;
    entry["name"] = tensor.name;
    entry["scope"] = tensor.scope;
    entry["formula"] = tensor.formula;
    entry["class"] = name_of(tensor.leaf);
    entry["bytes"] = tensor.bytes.count();
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

OrderedJson stage_json(const vllm::Deployment& deployment, const vllm::StageState& stage) {
  const Tokens tokens = deployment.max_num_batched_tokens;
  const std::int64_t rows = std::min(deployment.max_num_seqs, tokens.count());
  const opgraph::StepShape shape{tokens.count(), rows, rows};
  const opgraph::Program program(
      step_graph(deployment, stage.stage, profile_kind(deployment, stage.role)));
  OrderedJson json;
  json["rank"] = stage.stage * deployment.tp;
  json["tokens"] = shape.tokens;
  json["rows"] = shape.rows;
  std::vector<std::pair<Bytes, OrderedJson>> moments;
  const auto add = [&](const char* of, auto which) {
    if (const auto peak = program.peak_among(shape, which)) {
      moments.emplace_back(peak->bytes, moment_json(of, program.live_set(peak->op, shape)));
    }
  };
  add("forward pass", [](const auto& op) { return !is_sampler(op); });
  add("sampler", is_sampler);
  const opgraph::Program compiling(compile_graph(deployment, stage.role));
  if (const auto peak = compiling.peak_among(shape, [](const auto&) { return true; })) {
    moments.emplace_back(peak->bytes,
                         moment_json("compiling", compiling.live_set(peak->op, shape)));
  }
  std::stable_sort(moments.begin(), moments.end(),
                   [](const auto& left, const auto& right) { return left.first > right.first; });
  json["moments"] = OrderedJson::array();
  for (auto& [bytes, moment] : moments) {
    json["moments"].push_back(std::move(moment));
  }
  const Bytes highest = moments.empty() ? Bytes{0} : moments.front().first;
  json["tensors_bytes"] = highest.count();
  json["blocks_bytes"] = stage.profile_increase.count();
  json["live_ranges"] = OrderedJson::array();
  std::istringstream rows_text(program.draw(
      shape, kColumns, Bytes{std::max<std::int64_t>(1, highest.count() / kSmallestShare)}));
  for (std::string row; std::getline(rows_text, row);) {
    json["live_ranges"].push_back(row);
  }
  return json;
}

}  // namespace

OrderedJson explain_peak_json(const Plan& plan) {
  OrderedJson json = OrderedJson::array();
  if (const auto* vllm = plan.as<Plan::Vllm>()) {
    for (const vllm::StageState& stage : vllm->startup.stages) {
      json.push_back(stage_json(vllm->deployment, stage));
    }
  }
  return json;
}

}  // namespace oomcast
