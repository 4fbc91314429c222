#include "sim/engines/expert_exchange.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

double rounded(double value) { return std::round(value * 1e6) / 1e6; }

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
