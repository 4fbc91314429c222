#include "sim/engines/graph_driver.hpp"

#include <algorithm>

#include "models/data.hpp"
#include "models/quantization.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/version_rows.hpp"

namespace oomcast {
namespace {

constexpr const char* kFile = "kernels/cuda_graphs.json";

// Kernels that make 8 or 4 bit inputs of the products of a layer.
std::int64_t input_nodes(const GraphCosts& costs, const models::Quantization& quantization) {
  using Kind = models::QuantScheme::Kind;
  std::int64_t nodes = 0;
  for (const models::Quantization& other : quantization.others) {
    nodes = std::max(nodes, input_nodes(costs, other));
  }
  if (quantization.rest_in_16_bits) {
    return nodes;
  }
  switch (models::scheme_of(quantization).kind) {
    case Kind::kInt4Group:
    case Kind::kMxfp4:
    case Kind::kNf4:
      return nodes;  // weights alone
    case Kind::kPerTensor:
    case Kind::kPerChannel:
      return std::max(nodes, quantization.weight_float ? costs.float_input : costs.integer_input);
    case Kind::kFp8Block:
    case Kind::kNvfp4:
    case Kind::kMxfp8:
      return std::max(nodes, costs.float_input);
  }
  return nodes;
}

struct Nodes {
  std::int64_t whole = 0;
  std::int64_t in_attention = 0;  // of the attention call
};

Nodes nodes_of(const GraphCosts& costs, const models::LayerSpec& layer, LayerSums sums) {
  Nodes nodes{costs.layer + sums.count * costs.sum, costs.attention};
  nodes.whole += layer.attention.qk_norm ? 1 : 0;
  if (layer.ffn.kind == models::FfnKind::kMoe) {
    nodes.whole += costs.mixture + (layer.ffn.shared_width > 0 ? costs.shared_expert : 0);
  }
  if (layer.attention.kind == models::AttentionKind::kMla) {
    const std::int64_t indexer = layer.attention.mla.indexer_heads > 0 ? costs.indexer : 0;
    nodes.whole += costs.latent + indexer;
    nodes.in_attention += costs.latent / 2 + indexer;
  }
  nodes.whole += models::has_state(layer.attention.kind) ? costs.state : 0;
  return nodes;
}

Bytes graphs(const GraphCosts& costs, const models::ModelSpec& model, models::LayerRange layers,
             LayerSums sums, bool whole) {
  const std::int64_t inputs = model.quantization ? input_nodes(costs, *model.quantization) : 0;
  std::int64_t nodes = 0;
  for (int i = layers.begin; i < layers.end; ++i) {
    const Nodes layer = nodes_of(costs, model.layer(i), sums);
    nodes += inputs + layer.whole - (whole ? 0 : layer.in_attention);
  }
  const std::int64_t count = layers.end - layers.begin;
  return costs.node * nodes + costs.executable * (whole ? 1 : count + 1) +
         (sums.by_nccl ? costs.nccl_sum * (sums.count * count) : Bytes{});
}

}  // namespace

GraphCosts graph_costs(const std::optional<Version>& driver, std::vector<std::string>& provenance) {
  constexpr Version kUnknown{{999999}};
  Problems problems;
  const VersionRows rows(models::embedded_json(kFile), kFile, driver.value_or(kUnknown), problems);
  const auto read = [&](const char* name) { return rows.measured(name, provenance); };
  GraphCosts out;
  out.node = kKiB * read("graph_node_kib");
  out.executable = kKiB * read("graph_executable_kib");
  out.nccl_sum = kKiB * read("graph_nccl_sum_kib");
  out.layer = read("graph_nodes_per_layer");
  out.attention = read("graph_nodes_per_attention");
  out.mixture = read("graph_nodes_per_mixture");
  out.shared_expert = read("graph_nodes_per_shared_expert");
  out.sum = read("graph_nodes_per_sum");
  out.latent = read("graph_nodes_per_latent");
  out.indexer = read("graph_nodes_per_indexer");
  out.state = read("graph_nodes_per_state");
  out.float_input = read("graph_nodes_per_float_input");
  out.integer_input = read("graph_nodes_per_integer_input");
  problems.raise_if_any();
  return out;
}

LayerSums layer_sums(int tp, bool by_nccl) {
  constexpr std::int64_t kSums = 2;
  return tp == 1 ? LayerSums{} : LayerSums{kSums, by_nccl};
}

LayerSums layer_sums(const models::GpuSpec& gpu, int tp, const comm::EngineVersion& engine,
                     bool custom_all_reduce) {
  if (tp == 1) {
    return {};  // no group to ask about
  }
  const bool own = custom_all_reduce &&
                   comm::custom_all_reduce_limit(comm::group_on_node(gpu, tp), engine, false);
  return layer_sums(tp, !own);
}

Bytes whole_graph(const GraphCosts& costs, const models::ModelSpec& model,
                  models::LayerRange layers, LayerSums sums) {
  return graphs(costs, model, layers, sums, true);
}

Bytes graph_pieces(const GraphCosts& costs, const models::ModelSpec& model,
                   models::LayerRange layers, LayerSums sums) {
  return graphs(costs, model, layers, sums, false);
}

}  // namespace oomcast
