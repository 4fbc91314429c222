#include "sim/engines/expert_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

double rounded(double value) { return std::round(value * 1e6) / 1e6; }

opgraph::Affine per_token(double bytes) {
  return opgraph::Affine::per(opgraph::ShapeVar::kTokens,
                              Bytes{static_cast<std::int64_t>(std::ceil(bytes))});
}

OrderedJson load_json(const experts::RankLoad& load) {
  return {{"rows_per_token", rounded(load.copies)},
          {"tokens_per_token", rounded(load.tokens)},
          {"layer", load.layer},
          {"window", load.window}};
}

}  // namespace

double ExpertExchange::arriving() const {
  switch (kind) {
    case Exchange::kNone:
      return 1;
    case Exchange::kAllGather:
      return static_cast<double>(senders);
    case Exchange::kSparse:
      return static_cast<double>(senders) * load.worst().tokens;
    case Exchange::kBatched:
      break;
  }
  return 0;
}

double ExpertExchange::routed() const {
  switch (kind) {
    case Exchange::kNone:
    case Exchange::kAllGather:  // kernels make room for the rows of other ranks' experts too
      return arriving() * static_cast<double>(shape.experts_per_token);
    case Exchange::kSparse:
      return static_cast<double>(senders) * load.worst().copies;
    case Exchange::kBatched:
      break;
  }
  return 0;
}

std::int64_t ExpertExchange::slots() const {
  return kind == Exchange::kBatched
             ? product(div_ceil(shape.experts, shape.ranks), shape.ranks, shape.tokens)
             : 0;
}

opgraph::TensorInfo ExpertExchange::per_arriving(std::string name, std::string formula,
                                                 double bytes, Leaf leaf) const {
  return {std::move(name), std::move(formula), leaf, per_token(arriving() * bytes)};
}

opgraph::TensorInfo ExpertExchange::per_routed(std::string name, std::string formula, double bytes,
                                               Leaf leaf) const {
  return {std::move(name), std::move(formula), leaf, per_token(routed() * bytes)};
}

std::vector<opgraph::TensorInfo> ExpertExchange::dispatched(Bytes element) const {
  constexpr Leaf kLeaf = Leaf::kRuntimeIntermediates;
  constexpr std::string_view kResult = "combined tokens";
  std::vector<opgraph::TensorInfo> tensors;
  switch (kind) {
    case Exchange::kNone:
      break;
    case Exchange::kAllGather:
      tensors.push_back(per_arriving("gathered hidden states", "dp x T x H x b",
                                     static_cast<double>(product(shape.hidden, element.count())),
                                     kLeaf));
      tensors.push_back(per_arriving("gathered expert choices", "dp x T x k x 8",
                                     static_cast<double>(product(shape.experts_per_token, 8)),
                                     kLeaf));
      break;
    case Exchange::kSparse:
      // Those of one token: all are proportional to the tokens that arrive.
      for (const Buffer& tensor : comm::deep_ep_normal_tensors(shape, payload, 1)) {
        if (tensor.name != kResult) {
          tensors.push_back(per_arriving(std::string(tensor.name), tensor.formula,
                                         static_cast<double>(tensor.bytes.count()), kLeaf));
        }
      }
      break;
    case Exchange::kBatched:
      for (const Buffer& tensor : comm::deep_ep_low_latency_tensors(shape, payload)) {
        if (tensor.name != kResult) {
          tensors.push_back({std::string(tensor.name), tensor.formula, kLeaf,
                             opgraph::Affine::fixed(tensor.bytes)});
        }
      }
      break;
  }
  return tensors;
}

OrderedJson ExpertExchange::json() const {
  OrderedJson json;
  json["backend"] = backend;
  json["ranks"] = shape.ranks;
  json["experts"] = shape.experts;
  json["experts_per_token"] = shape.experts_per_token;
  json["dispatch_tokens"] = shape.tokens;
  json["buffer_bytes"] = device_bytes(buffers).count();
  json["pinned_host_bytes"] = host_bytes(buffers).count();
  json["buffers"] = OrderedJson::array();
  for (const Buffer& buffer : buffers) {
    json["buffers"].push_back({{"name", buffer.name},
                               {"formula", buffer.formula},
                               {"bytes", buffer.bytes.count()},
                               {"backing", name_of(buffer.backing)}});
  }
  json["routing"] = routing.text();
  json["even"] = load_json(load.even);
  json["worst_rank"] = load.worst_rank();
  json["imbalance"] = rounded(load.imbalance());
  json["ranks_load"] = OrderedJson::array();
  for (const experts::RankLoad& rank : load.ranks) {
    json["ranks_load"].push_back(load_json(rank));
  }
  return json;
}

Mixture widest_mixture(const models::ModelSpec& model) {
  Mixture out;
  for (int layer = 0; layer < model.layer_count(); ++layer) {
    const models::FfnSpec& ffn = model.layer(layer).ffn;
    if (ffn.kind != models::FfnKind::kMoe) {
      continue;
    }
    ++out.layers;
    if (out.ffn == nullptr || ffn.experts > out.ffn->experts) {
      out.ffn = &ffn;
    }
  }
  return out;
}

}  // namespace oomcast
