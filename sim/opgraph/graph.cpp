#include "sim/opgraph/graph.hpp"

#include <boost/graph/graphviz.hpp>
#include <sstream>
#include <utility>

#include "sim/opgraph/edges.hpp"

namespace oomcast::opgraph {

OpGraph::OpGraph() : edges_(std::make_unique<Edges>()) {}
OpGraph::~OpGraph() = default;
OpGraph::OpGraph(OpGraph&&) noexcept = default;
OpGraph& OpGraph::operator=(OpGraph&&) noexcept = default;

OpId OpGraph::op(std::string name, std::string scope, const std::vector<TensorId>& reads) {
  const auto id = OpId{static_cast<std::uint32_t>(op_infos_.size())};
  edges_->ops.push_back(
      boost::add_vertex(Vertex{true, static_cast<std::uint32_t>(id)}, edges_->graph));
  op_infos_.push_back({std::move(name), std::move(scope), false});
  for (const TensorId tensor : reads) {
    boost::add_edge(edges_->vertex(tensor), edges_->vertex(id), EdgeKind::kReads, edges_->graph);
  }
  return id;
}

TensorId OpGraph::add_tensor(TensorInfo info, Origin origin, std::optional<TensorId> base) {
  const auto id = TensorId{static_cast<std::uint32_t>(tensor_infos_.size())};
  edges_->tensors.push_back(
      boost::add_vertex(Vertex{false, static_cast<std::uint32_t>(id)}, edges_->graph));
  tensor_infos_.push_back(std::move(info));
  origins_.push_back(origin);
  storages_.push_back(base ? storage(*base) : id);
  return id;
}

TensorId OpGraph::make(OpId maker, TensorInfo info) {
  const TensorId id = add_tensor(std::move(info), Origin::kMade, std::nullopt);
  boost::add_edge(edges_->vertex(maker), edges_->vertex(id), EdgeKind::kMakes, edges_->graph);
  return id;
}

TensorId OpGraph::view(OpId by, TensorId base, std::string name) {
  TensorInfo named = info(storage(base));
  named.name = std::move(name);
  const TensorId id = add_tensor(std::move(named), Origin::kView, base);
  boost::add_edge(edges_->vertex(by), edges_->vertex(id), EdgeKind::kMakes, edges_->graph);
  boost::add_edge(edges_->vertex(storage(base)), edges_->vertex(id), EdgeKind::kShares,
                  edges_->graph);
  return id;
}

TensorId OpGraph::resident(TensorInfo info) {
  return add_tensor(std::move(info), Origin::kResident, std::nullopt);
}

void OpGraph::hold(TensorId tensor, OpId op) {
  boost::add_edge(edges_->vertex(tensor), edges_->vertex(op), EdgeKind::kHolds, edges_->graph);
}

void OpGraph::hold_to_here(TensorId tensor) {
  if (!op_infos_.empty()) {
    hold(tensor, OpId{static_cast<std::uint32_t>(op_infos_.size() - 1)});
  }
}

std::string OpGraph::dot() const {
  std::ostringstream out;
  boost::write_graphviz(
      out, edges_->graph, [this](std::ostream& text, Edges::Graph::vertex_descriptor at) {
        const Vertex& vertex = edges_->graph[at];
        const std::string& name =
            vertex.is_op ? op_infos_[vertex.index].name : tensor_infos_[vertex.index].name;
        text << "[shape=" << (vertex.is_op ? "box" : "ellipse")
             << ",label=" << boost::escape_dot_string(name) << "]";
      });
  return out.str();
}

}  // namespace oomcast::opgraph
