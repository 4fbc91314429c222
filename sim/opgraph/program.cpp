#include "sim/opgraph/program.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/opgraph/edges.hpp"

namespace oomcast::opgraph {
namespace {

OpId op_id(std::size_t index) { return OpId{static_cast<std::uint32_t>(index)}; }
TensorId tensor_id(std::size_t index) { return TensorId{static_cast<std::uint32_t>(index)}; }

std::string moment_name(const OpGraph::OpInfo& info) {
  return info.scope.empty() ? info.name : info.scope + ": " + info.name;
}

}  // namespace

Bytes LiveSet::bytes() const {
  return std::accumulate(tensors.begin(), tensors.end(), Bytes{},
                         [](Bytes sum, const LiveTensor& tensor) { return sum + tensor.bytes; });
}

Program::Program(OpGraph graph) : graph_(std::move(graph)) {
  find_live_ranges();
  find_envelope();
}

void Program::find_live_ranges() {
  const Edges& vertices = graph_.edges();
  const Edges::Graph& edges = vertices.graph;
  const std::size_t tensors = graph_.tensor_count();
  ranges_.resize(tensors);
  steps_.resize(graph_.op_count());
  for (std::size_t i = 0; i < tensors; ++i) {
    const TensorId id = tensor_id(i);
    const auto [in, in_end] = boost::in_edges(vertices.vertex(id), edges);
    OpId maker{};
    for (auto edge = in; edge != in_end; ++edge) {
      if (edges[*edge] == EdgeKind::kMakes) {
        maker = op_id(edges[boost::source(*edge, edges)].index);
      }
    }
    OpId last = maker;
    const auto [out, out_end] = boost::out_edges(vertices.vertex(id), edges);
    for (auto edge = out; edge != out_end; ++edge) {
      if (edges[*edge] != EdgeKind::kShares) {
        last = std::max(last, op_id(edges[boost::target(*edge, edges)].index));
      }
    }
    if (graph_.origin(id) == Origin::kMade) {
      ranges_[i] = {maker, last};
      steps_[index_of(maker)].made.push_back(id);
    } else if (graph_.origin(id) == Origin::kView) {
      // Views come after their storage, whose own range is known by now.
      Range& base = ranges_[index_of(graph_.storage(id))];
      base.last = std::max(base.last, last);
    }
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    const TensorId id = tensor_id(i);
    if (graph_.origin(id) == Origin::kMade && !graph_.info(id).kept) {
      steps_[index_of(ranges_[i].last)].freed.push_back(id);
    }
  }
}

void Program::find_envelope() {
  Moment now;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    for (const TensorId id : steps_[i].made) {
      const TensorInfo& info = graph_.info(id);
      now.live += info.bytes;
      now.by_leaf[oomcast::index_of(info.leaf)] += info.bytes;
    }
    now.op = op_id(i);
    const bool covered = std::any_of(envelope_.begin(), envelope_.end(), [&](const Moment& moment) {
      return moment.live.covers(now.live);
    });
    if (!covered && !steps_[i].made.empty()) {
      envelope_.erase(
          std::remove_if(envelope_.begin(), envelope_.end(),
                         [&](const Moment& moment) { return now.live.covers(moment.live); }),
          envelope_.end());
      envelope_.push_back(now);
    }
    for (const TensorId id : steps_[i].freed) {
      const TensorInfo& info = graph_.info(id);
      now.live -= info.bytes;
      now.by_leaf[oomcast::index_of(info.leaf)] -= info.bytes;
    }
  }
}

const Program::Moment& Program::highest(const StepShape& shape) const {
  OOMCAST_CHECK(!envelope_.empty(), "a program that allocates nothing has no peak");
  const Moment* best = &envelope_.front();
  for (const Moment& moment : envelope_) {
    if (moment.live.at(shape) > best->live.at(shape)) {
      best = &moment;
    }
  }
  return *best;
}

Program::Peak Program::peak(const StepShape& shape) const {
  if (envelope_.empty()) {
    return {};
  }
  const Moment& moment = highest(shape);
  return {moment.live.at(shape), moment.op};
}

std::optional<Program::Peak> Program::peak_among(
    const StepShape& shape, const std::function<bool(const OpGraph::OpInfo&)>& which) const {
  std::optional<Peak> best;
  Bytes live;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    for (const TensorId id : steps_[i].made) {
      live += graph_.info(id).bytes.at(shape);
    }
    if (which(graph_.info(op_id(i))) && (!best || live > best->bytes)) {
      best = Peak{live, op_id(i)};
    }
    for (const TensorId id : steps_[i].freed) {
      live -= graph_.info(id).bytes.at(shape);
    }
  }
  return best;
}

std::array<Bytes, kLeafCount> Program::peak_by_leaf(const StepShape& shape) const {
  std::array<Bytes, kLeafCount> out{};
  if (!envelope_.empty()) {
    const Moment& moment = highest(shape);
    std::transform(moment.by_leaf.begin(), moment.by_leaf.end(), out.begin(),
                   [&](const Affine& bytes) { return bytes.at(shape); });
  }
  return out;
}

LiveSet Program::live_set(OpId op, const StepShape& shape) const {
  LiveSet set{moment_name(graph_.info(op)), {}};
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const TensorId id = tensor_id(i);
    const Range& range = ranges_[i];
    const bool alive = graph_.origin(id) == Origin::kMade && range.first <= op &&
                       (op <= range.last || graph_.info(id).kept);
    const TensorInfo& info = graph_.info(id);
    if (alive && info.bytes.at(shape) > Bytes{0}) {
      set.tensors.push_back({info.name, info.formula, graph_.info(range.first).scope, info.leaf,
                             info.bytes.at(shape)});
    }
  }
  return set;
}

std::uint64_t Program::digest() const {
  Digest digest;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    digest.add_word(static_cast<std::uint64_t>(graph_.info(op_id(i)).between_pieces));
    digest.add_word(static_cast<std::uint64_t>(graph_.info(op_id(i)).empties_cache));
    for (const TensorId id : steps_[i].made) {
      const TensorInfo& info = graph_.info(id);
      digest.add_word(index_of(id));
      digest.add_word(oomcast::index_of(info.leaf));
      digest.add_word(static_cast<std::uint64_t>(info.bytes.constant.count()));
      for (const Bytes slope : info.bytes.slope) {
        digest.add_word(static_cast<std::uint64_t>(slope.count()));
      }
    }
    for (const TensorId id : steps_[i].freed) {
      digest.add_word(~index_of(id));
    }
  }
  return digest.value();
}

std::string Program::draw(const StepShape& shape, int width, Bytes least) const {
  std::string out;
  const std::size_t ops = std::max<std::size_t>(1, graph_.op_count());
  const auto columns = static_cast<std::size_t>(std::max(width, 1));
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const TensorId id = tensor_id(i);
    const TensorInfo& info = graph_.info(id);
    if (graph_.origin(id) != Origin::kMade || info.bytes.at(shape) < least) {
      continue;
    }
    const std::size_t first = index_of(ranges_[i].first) * columns / ops;
    const std::size_t last = info.kept ? columns - 1 : index_of(ranges_[i].last) * columns / ops;
    std::string row(columns, '.');
    std::fill(row.begin() + static_cast<std::ptrdiff_t>(first),
              row.begin() + static_cast<std::ptrdiff_t>(last) + 1, '#');
    out += fmt::format("{} {:>11}  {}\n", row, format_bytes(info.bytes.at(shape)), info.name);
  }
  return out;
}

}  // namespace oomcast::opgraph
