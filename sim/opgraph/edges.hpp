// The vertices and edges of an OpGraph.
#pragma once

#include <boost/graph/adjacency_list.hpp>
#include <cstdint>
#include <vector>

#include "sim/opgraph/graph.hpp"

namespace oomcast::opgraph {

enum class EdgeKind : std::uint8_t { kMakes, kReads, kHolds, kShares };

struct Vertex {
  bool is_op = false;
  std::uint32_t index = 0;
};

struct Edges {
  using Graph =
      boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS, Vertex, EdgeKind>;

  Graph graph;
  std::vector<Graph::vertex_descriptor> ops;      // by OpId
  std::vector<Graph::vertex_descriptor> tensors;  // by TensorId

  [[nodiscard]] Graph::vertex_descriptor vertex(OpId id) const { return ops[index_of(id)]; }
  [[nodiscard]] Graph::vertex_descriptor vertex(TensorId id) const { return tensors[index_of(id)]; }
};

}  // namespace oomcast::opgraph
