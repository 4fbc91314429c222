#include "tests/golden/startup_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "models/gpu.hpp"
#include "sim/engines/vllm/startup.hpp"
#include "sim/engines/vllm/step_peaks.hpp"

namespace oomcast::golden {
namespace {

using vllm::StepKind;

using Complaints = std::vector<std::string>;

constexpr double kMib = 1048576.0;

// The launch arguments of a recording as a shell line.
std::string launch_line(const Json& recorded) {
  std::string line;
  for (const auto& [name, value] : recorded.at("env").items()) {
    line += name + "='" + (value.is_string() ? value.get<std::string>() : value.dump()) + "' ";
  }
  // Pipelines were started rank by rank ("external_launcher"), which the second runner cannot do.
  const Json runner = recorded.at("engine_report").value("runner", Json());
  if (runner.is_string() &&
      runner.get<std::string>().rfind("vllm.v1.worker.gpu_model_runner", 0) == 0) {
    line += "VLLM_USE_V2_MODEL_RUNNER=0 ";
  }
  // The recordings run without asynchronous scheduling.
  line += "vllm serve model --no-async-scheduling";
  for (const auto& [name, value] : recorded.at("launch").items()) {
    if (value.is_boolean()) {
      line += (value.get<bool>() ? " --" : " --no-") + name;
    } else {
      line +=
          " --" + name + " '" + (value.is_string() ? value.get<std::string>() : value.dump()) + "'";
    }
  }
  return line;
}

// Collectives do nothing there, but a communicator that gave up (symmetric memory) may have left
// memory outside PyTorch before the runner was made.
Bytes left_by_communicators(const Json& recorded) {
  for (const Json& phase : recorded.value("phases", Json::array())) {
    if (phase.at("phase") == "runner_made") {
      return std::max(Bytes{0}, Bytes{phase.at("driver_used").get<std::int64_t>()} -
                                    Bytes{phase.at("reserved").get<std::int64_t>()} -
                                    Bytes{recorded.at("base_used_bytes").get<std::int64_t>()});
    }
  }
  return Bytes{0};
}

// There was no checkpoint that could tell whether the head is one of its own, so from Transformers
// 5 on the config class decides: Mistral3's ties it whatever the text model's says.
models::ModelSpec as_recorded(const Json& recorded, models::ModelSpec model) {
  constexpr Version kOuterConfigDecides{0, 33, 0};
  if (model.architecture == "Mistral3ForConditionalGeneration" && !model.tie_word_embeddings &&
      parse_version(recorded.at("version").get<std::string>()) >= kOuterConfigDecides) {
    model.tie_word_embeddings = true;
    std::erase_if(model.after,
                  [](const models::TensorSpec& tensor) { return tensor.name == "lm_head.weight"; });
  }
  return model;
}

vllm::Deployment deployment_of(const Json& recorded, const models::ModelSpec& model) {
  launch::LaunchOptions options;
  options.engine_version = recorded.at("version").get<std::string>();
  models::GpuSpec gpu = models::find_gpu(recorded.at("gpu").at("name").get<std::string>());
  gpu.context_bytes = Bytes{0};
  CardState card;
  const auto total = recorded.at("total_bytes").get<std::int64_t>();
  if (total <= 0 || total > allocator::kMaxDeviceBytes.count()) {
    throw ConfigError(
        Problem{"recording", "total_bytes", std::to_string(total), "the bytes of a card", ""});
  }
  card.total = Bytes{total};
  card.other_use = Bytes{recorded.at("base_used_bytes").get<std::int64_t>()};
  Assumed assumed;
  assumed.non_torch = Bytes{0};
  assumed.communicators = left_by_communicators(recorded);
  // Kernels that were timed are noted, but for those that are compiled one by one.
  assumed.kernels_timed_before =
      recorded.at("skipped_kernels").dump().find("timed") == std::string::npos &&
      !recorded.at("launch").value("enforce_eager", false);
  // Rank 0 of several stages was recorded after other runs of its model: pieces were not compiled
  // from nothing again.
  assumed.pieces_compiled_before = recorded.at("launch").contains("pipeline-parallel-size") ||
                                   recorded.at("setting").get<std::string>().rfind("pp", 0) == 0;
  vllm::Deployment deployment = vllm::resolve(
      launch::parse_launch(launch_line(recorded), options),
      std::make_shared<models::ModelSpec>(as_recorded(recorded, model)), gpu, card, assumed);
  if (recorded.value("flashinfer", Json()) != Json(true)) {  // not installed there
    deployment.rules.flashinfer_ropes = false;
    deployment.rules.flashinfer_mla_workspace = Bytes{0};
  }
  deployment.graph_costs = {};
  return deployment;
}

class Comparison {
 public:
  Comparison(const Json& recorded, const vllm::StageState& stage)
      : recorded_(recorded), stage_(stage) {}

  Complaints run(const EngineReport& fed) {
    near("weights_bytes", stage_.weights, 0.001, 4 * kMib);
    near("activation_peak_bytes", stage_.activation_peak, 0.02, 8 * kMib);
    near("available_kv_bytes", stage_.available_kv, 0.003, 0);
    groups();
    exact("kv_blocks", fed.kv_blocks);
    exact("kv_tokens", fed.kv_tokens);
    concurrency(fed);
    phases();
    return std::move(complaints_);
  }

 private:
  const Json& measured() const { return recorded_.at("engine_report"); }

  void complain(const std::string& field, const std::string& expected, const std::string& got) {
    complaints_.push_back(fmt::format("{} expected {} got {}", field, expected, got));
  }

  void near(const std::string& field, Bytes got, double share, double absolute) {
    if (!measured().contains(field) || !measured().at(field).is_number()) {
      return;
    }
    const double expected = measured().at(field).get<double>();
    const double off = std::abs(static_cast<double>(got.count()) - expected);
    if (off > std::max(absolute, share * std::abs(expected))) {
      complain(field, fmt::format("{:.0f}", expected), std::to_string(got.count()));
    }
  }

  void exact(const char* field, const std::optional<std::int64_t>& got) {
    if (!measured().contains(field) || !measured().at(field).is_number()) {
      return;
    }
    const auto expected = static_cast<std::int64_t>(measured().at(field).get<double>());
    if (!got || *got != expected) {
      complain(field, std::to_string(expected), got ? std::to_string(*got) : "nothing");
    }
  }

  void concurrency(const EngineReport& fed) {
    const auto& expected = measured().value("max_concurrency", Json());
    if (expected.is_number() &&
        (!fed.max_concurrency || std::abs(*fed.max_concurrency - expected.get<double>()) > 0.006)) {
      complain("max_concurrency", expected.dump(),
               fmt::format("{}", fed.max_concurrency.value_or(0)));
    }
  }

  void groups() {
    const Json& expected = recorded_.at("kv_groups");
    if (expected.size() != stage_.kv.groups.size()) {
      complain("kv_groups", std::to_string(expected.size()),
               std::to_string(stage_.kv.groups.size()));
      return;
    }
    // Groups of one kind are interchangeable: compare how many layers of each kind there are.
    // Packed groups ("UniformType...") do not tell their members' windows.
    const bool packed = std::any_of(expected.begin(), expected.end(), [](const Json& group) {
      return group.value("type", std::string()).rfind("UniformType", 0) == 0;
    });
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> wanted;
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> ours;
    for (const Json& group : expected) {
      Json window = group.value("sliding_window", Json());
      if (!window.is_number()) {
        window = group.value("attention_chunk_size", Json());
      }
      wanted[{group.at("block_size").get<std::int64_t>(),
              window.is_number() && !packed ? window.get<std::int64_t>() : 0}] +=
          group.at("layers").get<std::int64_t>();
    }
    for (const vllm::KvGroupLayout& member : stage_.kv.groups) {
      ours[{member.group.block_size.count(), packed ? 0 : member.group.window.count()}] +=
          member.layers;
    }
    if (wanted != ours) {
      complain("kv_groups", "other block sizes, windows or layers", "ours");
    }
  }

  // Memory of the device at the ends of phases that both have.
  void phases() {
    if (!recorded_.contains("phases")) {
      return;
    }
    static const std::map<std::string, std::string> kOurs = {
        {"weights_loaded", "load"}, {"profiled", "profile"}, {"kv_made", "kv"}};
    for (const Json& phase : recorded_.at("phases")) {
      const auto name = kOurs.find(phase.at("phase").get<std::string>());
      if (name == kOurs.end()) {
        continue;
      }
      for (const PhaseRecord& mine : stage_.phases) {
        const double expected = phase.at("driver_used").get<double>();
        const auto got = static_cast<double>(mine.views.device_used.count());
        if (mine.name == name->second &&
            std::abs(got - expected) > std::max(8 * kMib, 0.002 * expected)) {
          complain("phase " + name->second, fmt::format("{:.0f}", expected),
                   fmt::format("{:.0f}", got));
        }
      }
    }
  }

  const Json& recorded_;
  const vllm::StageState& stage_;
  Complaints complaints_;
};

// How the recorded step ran: greedy, with the last chunk's rows.
StepKind step_kind(const vllm::Deployment& deployment, vllm::Execution execution, bool samples) {
  StepKind kind = vllm::serving_kind(deployment, 0, execution);
  kind.sampling = samples ? vllm::Sampling::kGreedy : vllm::Sampling::kNone;
  return kind;
}

void check_steps(const Json& recorded, const vllm::Deployment& deployment, PeakPoints& points) {
  const vllm::StepPeaks peaks(deployment, 0);
  for (const Json& step : recorded.value("steps", Json::array())) {
    if (step.value("batch", "1x1").empty()) {
      continue;  // a warm-up of the engine's, with metadata of its own
    }
    const auto tokens = step.at("tokens").get<std::int64_t>();
    const auto requests = step.at("requests").get<std::int64_t>();
    const Json& part = step.at("parts").back();
    const bool samples = part.at("part") != "forward";
    const opgraph::Program program(vllm::step_graph(
        deployment, 0,
        step_kind(deployment, peaks.execution_of(Tokens{tokens}, requests), samples)));
    const Bytes got = program.peak({tokens, requests, requests}).bytes;
    const double expected = part.at("peak_over_bytes").get<double>();
    ++points.steps;
    if (std::abs(static_cast<double>(got.count()) - expected) <=
        std::max(8 * kMib, 0.02 * expected)) {
      ++points.steps_within;
    } else {
      points.off.push_back(
          fmt::format("step of {} tokens, {} requests expected {:.1f} MiB got "
                      "{:.1f}",
                      tokens, requests, expected / kMib, to_gib(got) * 1024));
    }
  }
}

void check_graphs(const Json& recorded, const vllm::StageState& stage, PeakPoints& points) {
  std::map<std::pair<std::string, std::int64_t>, double> expected;
  for (const Json& graph : recorded.value("graphs", Json::array())) {
    if (graph.at("when") == "capture") {
      expected[{graph.at("mode") == "FULL" ? "full" : "piecewise",
                graph.at("size").get<std::int64_t>()}] =
          graph.at("pool_growth_bytes").get<double>();
    }
  }
  for (const CapturedGraph& graph : stage.graphs) {
    const auto at = expected.find({std::string(graph.mode), graph.size});
    if (at == expected.end()) {
      continue;
    }
    const auto got = static_cast<double>(graph.pool_growth.count());
    ++points.graphs;
    if (std::abs(got - at->second) <= std::max(2 * kMib, 0.05 * at->second)) {
      ++points.graphs_within;
    } else {
      points.off.push_back(fmt::format("pool growth of {} {} expected {:.1f} MiB got {:.1f}",
                                       graph.mode, graph.size, at->second / kMib, got / kMib));
    }
  }
}

void check_live_tensors(const Json& recorded, const vllm::StageState& stage, PeakPoints& points) {
  const Json& peak = recorded.value("peak_live_tensors", Json());
  if (!peak.is_object()) {
    return;
  }
  std::multiset<std::int64_t> ours;
  for (const opgraph::LiveTensor& tensor : stage.profile_peak.tensors) {
    ours.insert(tensor.bytes.count());
  }
  for (const Json& tensor : peak.at("top")) {
    const auto bytes = tensor.at("bytes").get<std::int64_t>();
    if (static_cast<double>(bytes) < kMib) {
      continue;
    }
    ++points.tensors;
    if (const auto at = ours.find(bytes); at != ours.end()) {
      ours.erase(at);
      ++points.tensors_found;
    } else {
      points.off.push_back(fmt::format("no tensor of {:.2f} MiB at the peak ({})",
                                       static_cast<double>(bytes) / kMib,
                                       tensor.at("frame").get<std::string>().substr(0, 60)));
    }
  }
}

}  // namespace

PeakPoints check_peaks(const Json& recorded, const models::ModelSpec& model) {
  PeakPoints points;
  if (recorded.at("outcome") != "started") {
    return points;
  }
  try {
    const vllm::Deployment deployment = deployment_of(recorded, model);
    const vllm::Startup startup = vllm::simulate_startup(deployment);
    const std::string setting = recorded.at("setting").get<std::string>();
    const vllm::StageState& stage =
        startup.stages.at(setting.find("_rank1") != std::string::npos ? 1 : 0);
    check_steps(recorded, deployment, points);
    check_graphs(recorded, stage, points);
    check_live_tensors(recorded, stage, points);
  } catch (const ConfigError& error) {
    points.off.emplace_back(fmt::format("refused: {}", error.what()));
  }
  return points;
}

namespace {

std::vector<std::string> complaints(const Json& recorded, vllm::Deployment deployment) {
  try {
    const vllm::Startup startup = vllm::simulate_startup(deployment);
    const bool started = recorded.at("outcome") == "started";
    if (started != startup.outcome.fits()) {
      return {fmt::format("outcome expected {} got {}", recorded.at("outcome").get<std::string>(),
                          name_of(startup.outcome.kind))};
    }
    if (!started) {
      return {};
    }
    // Recordings of a later stage name it; only that rank was run.
    const std::string setting = recorded.at("setting").get<std::string>();
    const std::size_t stage = setting.find("_rank1") != std::string::npos ? 1 : 0;
    deployment.assumed.available_kv =
        Bytes{recorded.at("engine_report").at("available_kv_bytes").get<std::int64_t>()};
    const vllm::Startup fed = vllm::simulate_startup(deployment);
    if (deployment.pp == 1) {
      return Comparison(recorded, startup.stages.at(stage)).run(fed.report);
    }
    // A rank recorded alone takes as many blocks as it can hold itself.
    deployment.assumed.available_kv.reset();
    vllm::StageStartup alone(deployment, static_cast<int>(stage));
    if (!alone.measure() ||
        !alone.serve(Blocks{alone.state().available_kv / alone.state().kv.block_bytes()})) {
      return {"stage alone: " + alone.outcome().message};
    }
    return Comparison(recorded, alone.state()).run(fed.report);
  } catch (const ConfigError& error) {
    return {fmt::format("refused: {}", error.what())};
  }
}

}  // namespace

std::vector<std::string> check_startup(const Json& recorded, const models::ModelSpec& model) {
  try {
    vllm::Deployment deployment = deployment_of(recorded, model);
    std::vector<std::string> fresh = complaints(recorded, deployment);
    if (fresh.empty() || deployment.enforce_eager || deployment.assumed.pieces_compiled_before) {
      return fresh;
    }
    // Which runs found pieces of a run before in PyTorch's cache, the recordings do not say.
    deployment.assumed.pieces_compiled_before = true;
    std::vector<std::string> cached = complaints(recorded, deployment);
    return cached.size() < fresh.size() ? cached : fresh;
  } catch (const ConfigError& error) {
    return {fmt::format("refused: {}", error.what())};
  }
}

}  // namespace oomcast::golden
