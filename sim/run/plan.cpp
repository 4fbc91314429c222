#include "sim/run/plan.hpp"

#include <algorithm>

#include "models/catalog.hpp"
#include "models/config_reader.hpp"
#include "models/gpu.hpp"
#include "sim/core/error.hpp"
#include "sim/run/fixes.hpp"

namespace oomcast {
namespace {

using models::AttentionKind;

std::shared_ptr<const models::ModelSpec> find_model(const DeploymentInput& input,
                                                    const launch::Launch& launch) {
  return std::make_shared<models::ModelSpec>(input.model_config.empty()
                                                 ? models::catalog_model(launch.model)
                                                 : models::read_model_config(input.model_config));
}

// Runs `read`; what it complains about joins the other problems.
template <typename Read>
auto gathered(Problems& problems, Read read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const ConfigError& error) {
    problems.take(error);
    return std::nullopt;
  }
}

// Reading the KV of the layers of each kind, per rank.
std::vector<AttentionReads> attention_reads(const vllm::Deployment& deployment) {
  std::vector<AttentionReads> reads;
  for (int stage = 0; stage < deployment.pp; ++stage) {
    for (const models::KvLayerSpec& layer : deployment.kv_layers(stage)) {
      const bool windowed =
          layer.kind == AttentionKind::kSlidingWindow || layer.kind == AttentionKind::kChunked;
      const std::int64_t window = windowed ? layer.window.count() : 0;
      const auto bytes = static_cast<double>(deployment.kv_token_bytes(layer).count());
      const auto same = std::find_if(reads.begin(), reads.end(),
                                     [window](const auto& kind) { return kind.window == window; });
      if (same == reads.end()) {
        reads.push_back({bytes, window});
      } else {
        same->kv_bytes_per_token += bytes;
      }
    }
  }
  return reads;
}

// Matrices of one rank, split into the output head and all others.
void add_weights(const vllm::Deployment& deployment, RooflineTerms& terms) {
  const double element = static_cast<double>(models::bits_of(deployment.dtype)) / 8;
  for (int stage = 0; stage < deployment.pp; ++stage) {
    const models::RankWeights weights =
        models::weights_on_rank(*deployment.model, deployment.shard(stage));
    for (const models::TensorBytes& tensor : weights.tensors) {
      const auto bytes = static_cast<double>(tensor.bytes.count());
      const double parameters = bytes * 8 / static_cast<double>(models::bits_of(tensor.dtype));
      if (tensor.layer >= 0) {
        terms.linear_bytes += bytes;
        terms.linear_parameters += parameters;
      }
    }
  }
  const double rows = static_cast<double>(deployment.model->vocabulary) / deployment.tp;
  terms.head_parameters = rows * static_cast<double>(deployment.model->hidden);
  terms.head_bytes = terms.head_parameters * element;
}

// One-shot all-reduce inside a graph: latency and bus rate from public tables (step-time notes,
// section 3): NVLink reaches about half of one direction at TP2 and three quarters at TP8; PCIe
// boxes 19 GB/s for a pair and 3 beyond.
void add_communication(const vllm::Deployment& deployment, RooflineTerms& terms) {
  if (deployment.tp == 1) {
    return;
  }
  terms.tensor_parallel = deployment.tp;
  terms.allreduces_per_layer = 2;
  terms.allreduce_latency_seconds = 6e-6;
  const double one_way = deployment.gpu.nvlink_bandwidth / 2;
  const double share = deployment.tp <= 2 ? 0.48 : deployment.tp <= 4 ? 0.6 : 0.73;
  constexpr double kPciePair = 19e9;
  constexpr double kPcieMany = 3e9;
  terms.allreduce_bytes_per_second =
      one_way > 0 ? share * one_way : (deployment.tp == 2 ? kPciePair : kPcieMany);
}

}  // namespace

AnyDeployment resolve_input(const DeploymentInput& input) {
  Problems problems;
  auto launch = gathered(problems, [&] {
    launch::LaunchOptions options;
    options.engine_version = input.engine_version;
    return launch::parse_launch(input.launch_line, options);
  });
  auto gpu = gathered(problems, [&] { return models::find_gpu(input.gpu); });
  const auto assumed = gathered(problems, [&] { return Assumed::parse(input.assume); });
  std::optional<std::shared_ptr<const models::ModelSpec>> model;
  if (launch) {
    model = gathered(problems, [&] { return find_model(input, *launch); });
  }
  problems.raise_if_any();
  return resolve_for_engine(std::move(*launch), std::move(*model), std::move(*gpu), input.card,
                            *assumed);
}

AnyDeployment resolve_for_engine(launch::Launch launch,
                                 std::shared_ptr<const models::ModelSpec> model,
                                 models::GpuSpec gpu, const CardState& card,
                                 const Assumed& assumed) {
  switch (launch.engine) {
    case launch::Engine::kSglang:
      return AnyDeployment(
          sglang::resolve(std::move(launch), std::move(model), std::move(gpu), card, assumed));
    case launch::Engine::kTrtllm:
      return AnyDeployment(
          trtllm::resolve(std::move(launch), std::move(model), std::move(gpu), card, assumed));
    case launch::Engine::kVllm:
      break;
  }
  return AnyDeployment(
      vllm::resolve(std::move(launch), std::move(model), std::move(gpu), card, assumed));
}

AnyDeployment resolve_again(const EngineDeployment& deployment, launch::Launch launch) {
  return resolve_for_engine(std::move(launch), deployment.model, deployment.gpu, deployment.card,
                            deployment.assumed);
}

const EngineDeployment& AnyDeployment::common() const {
  return std::visit([](const auto& engine) -> const EngineDeployment& { return engine; }, engine_);
}
EngineDeployment& AnyDeployment::common() {
  return std::visit([](auto& engine) -> EngineDeployment& { return engine; }, engine_);
}

const EngineDeployment& Plan::deployment() const {
  return std::visit([](const auto& on) -> const EngineDeployment& { return on.deployment; },
                    engine_);
}
std::vector<const RankState*> Plan::ranks() const {
  return std::visit(
      [](const auto& on) {
        std::vector<const RankState*> ranks;
        for (const auto& stage : on.startup.stages) {
          ranks.push_back(&stage);
        }
        return ranks;
      },
      engine_);
}
const EngineReport& Plan::report() const {
  return std::visit([](const auto& on) -> const EngineReport& { return on.startup.report; },
                    engine_);
}
const Outcome& Plan::outcome() const {
  return std::visit([](const auto& on) -> const Outcome& { return on.startup.outcome; }, engine_);
}
Outcome& Plan::outcome() {
  return std::visit([](auto& on) -> Outcome& { return on.startup.outcome; }, engine_);
}

Plan start(AnyDeployment deployment) {
  return std::visit(
      [](auto&& engine) {
        using Deployment = std::decay_t<decltype(engine)>;
        auto startup = simulate_startup(engine);
        return Plan(
            Plan::Started<Deployment, decltype(startup)>{std::move(engine), std::move(startup)});
      },
      std::move(deployment.engine()));
}

Plan make_plan(AnyDeployment deployment) {
  Plan plan = start(std::move(deployment));
  if (!plan.outcome().fits()) {
    plan.outcome().fixes = find_fixes(plan);
  }
  return plan;
}

std::unique_ptr<StepTimeModel> step_time_model(const vllm::Deployment& deployment) {
  const models::GpuSpec& gpu = deployment.gpu;
  const models::ModelSpec& model = *deployment.model;
  RooflineTerms terms;
  terms.layers = model.layer_count();
  terms.hidden = static_cast<double>(model.hidden);
  double width = 0;
  double queries = 0;
  for (const models::LayerSpec& layer : model.layer_kinds) {
    width = std::max(width, static_cast<double>(layer.ffn.width));
    queries =
        std::max(queries, static_cast<double>(layer.attention.heads * layer.attention.head_dim));
  }
  terms.mlp_width_per_rank = width / deployment.tp;
  terms.query_width_per_rank = queries / deployment.tp;
  terms.element_bytes = static_cast<double>(models::bits_of(deployment.dtype)) / 8;
  add_weights(deployment, terms);
  terms.attention = attention_reads(deployment);
  terms.bandwidth = gpu.bandwidth;
  // Kernels with 16-bit activations; other element types join with quantisation.
  const models::GemmRates& rates = gpu.bf16;
  terms.peak_flops = rates.peak_flops;
  terms.memory_efficiency = rates.bandwidth_share_large;
  terms.compute_efficiency = rates.flops_share_2048;
  terms.kv_read_efficiency = gpu.attention.decode_16_8k;
  terms.prefill_efficiency = gpu.attention.prefill_4k;
  terms.step_seconds = deployment.rules.step_seconds;
  terms.layer_seconds = deployment.rules.layer_seconds;
  terms.request_seconds = deployment.rules.request_seconds;
  add_communication(deployment, terms);
  return make_roofline(terms);
}

}  // namespace oomcast
