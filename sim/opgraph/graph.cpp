#include "sim/opgraph/graph.hpp"

#include <boost/graph/graphviz.hpp>
#include <sstream>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast::opgraph {

OpId OpGraph::op(std::string name, std::string scope, const std::vector<TensorId>& reads) {
  const auto id = OpId{static_cast<std::uint32_t>(ops_.size())};
  ops_.push_back(boost::add_vertex(Vertex{true, static_cast<std::uint32_t>(id)}, *graph_));
  op_infos_.push_back({std::move(name), std::move(scope), false});
  for (const TensorId tensor : reads) {
    boost::add_edge(vertex(tensor), vertex(id), EdgeKind::kReads, *graph_);
  }
  return id;
}

TensorId OpGraph::add_tensor(TensorInfo info, Origin origin, std::optional<TensorId> base) {
  const auto id = TensorId{static_cast<std::uint32_t>(tensors_.size())};
  tensors_.push_back(boost::add_vertex(Vertex{false, static_cast<std::uint32_t>(id)}, *graph_));
  tensor_infos_.push_back(std::move(info));
  origins_.push_back(origin);
  storages_.push_back(base ? storage(*base) : id);
  return id;
}

TensorId OpGraph::make(OpId maker, TensorInfo info) {
  const TensorId id = add_tensor(std::move(info), Origin::kMade, std::nullopt);
  boost::add_edge(vertex(maker), vertex(id), EdgeKind::kMakes, *graph_);
  return id;
}

TensorId OpGraph::view(OpId by, TensorId base, std::string name) {
  TensorInfo named = info(storage(base));
  named.name = std::move(name);
  const TensorId id = add_tensor(std::move(named), Origin::kView, base);
  boost::add_edge(vertex(by), vertex(id), EdgeKind::kMakes, *graph_);
  boost::add_edge(vertex(storage(base)), vertex(id), EdgeKind::kShares, *graph_);
  return id;
}

TensorId OpGraph::resident(TensorInfo info) {
  return add_tensor(std::move(info), Origin::kResident, std::nullopt);
}

void OpGraph::hold(TensorId tensor, OpId op) {
  boost::add_edge(vertex(tensor), vertex(op), EdgeKind::kHolds, *graph_);
}

void OpGraph::hold_to_here(TensorId tensor) {
  if (!ops_.empty()) {
    hold(tensor, OpId{static_cast<std::uint32_t>(ops_.size() - 1)});
  }
}

std::string OpGraph::dot() const {
  std::ostringstream out;
  boost::write_graphviz(out, *graph_, [this](std::ostream& text, Graph::vertex_descriptor at) {
    const Vertex& vertex = (*graph_)[at];
    const std::string& name =
        vertex.is_op ? op_infos_[vertex.index].name : tensor_infos_[vertex.index].name;
    text << "[shape=" << (vertex.is_op ? "box" : "ellipse")
         << ",label=" << boost::escape_dot_string(name) << "]";
  });
  return out.str();
}

}  // namespace oomcast::opgraph
