// An op graph as the memory sees it: allocations and frees in order, the highest moments, and who
// lives at them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/opgraph/graph.hpp"

namespace oomcast::opgraph {

// One tensor of a live set, at a given shape.
struct LiveTensor {
  std::string name;
  std::string formula;
  std::string scope;  // of the op that made it
  Leaf leaf = Leaf::kRuntimeActivations;
  Bytes bytes;
};

// The tensors alive together at one op.
struct LiveSet {
  std::string moment;               // the op, with its scope
  std::vector<LiveTensor> tensors;  // in the order they were made
  [[nodiscard]] Bytes bytes() const;
};

class Program {
 public:
  // Finds the live range of every storage. The graph stays with the program.
  explicit Program(OpGraph graph);

  // What one op does to memory: its tensors appear in order; when it has run, others go.
  struct Step {
    std::vector<TensorId> made;
    std::vector<TensorId> freed;  // in the order they were made
  };
  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }
  [[nodiscard]] const OpGraph& graph() const { return graph_; }

  // Most bytes alive at once beyond what is resident: the bound that no allocator can go under.
  // Of equal moments the first.
  struct Peak {
    Bytes bytes;
    OpId op{};
  };
  [[nodiscard]] Peak peak(const StepShape& shape) const;
  // The highest moment among the ops that `which` accepts, by walking all of them; nothing if it
  // accepts none.
  [[nodiscard]] std::optional<Peak> peak_among(
      const StepShape& shape, const std::function<bool(const OpGraph::OpInfo&)>& which) const;
  // Bytes by leaf at that moment.
  [[nodiscard]] std::array<Bytes, kLeafCount> peak_by_leaf(const StepShape& shape) const;
  [[nodiscard]] LiveSet live_set(OpId op, const StepShape& shape) const;

  // Moments that are the highest for some shape; each affine in the shape.
  struct Moment {
    OpId op{};
    Affine live;
    std::array<Affine, kLeafCount> by_leaf{};
  };
  [[nodiscard]] const std::vector<Moment>& envelope() const { return envelope_; }

  // Of what the program does to memory: equal digests, equal calls.
  [[nodiscard]] std::uint64_t digest() const;

  // Live ranges drawn as rows of text, `width` columns for all ops; storages below `least` bytes
  // at `shape` are left out.
  [[nodiscard]] std::string draw(const StepShape& shape, int width, Bytes least) const;

 private:
  void find_live_ranges();
  void find_envelope();
  [[nodiscard]] const Moment& highest(const StepShape& shape) const;

  OpGraph graph_;
  struct Range {
    OpId first{};
    OpId last{};
  };
  std::vector<Range> ranges_;  // of storages; other entries unused
  std::vector<Step> steps_;
  std::vector<Moment> envelope_;
};

}  // namespace oomcast::opgraph
