// Ops and tensors of one engine step, in the order in which the host issues them.
//
// A bipartite graph (Boost.Graph): an op has edges to the tensors it makes, a tensor has edges to
// the ops that read or hold it, and a view to the tensor whose storage it shares. A storage lives
// from the op that makes it to the last op that reads or holds it or one of its views; PyTorch
// frees it there, on the host, before the next op asks for memory.
//
// Compiled code frees at the last read. Eager Python frees when the last variable that names the
// tensor is gone: Variable mirrors such a name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/ledger/classes.hpp"
#include "sim/opgraph/affine.hpp"

namespace oomcast::opgraph {

enum class OpId : std::uint32_t {};
enum class TensorId : std::uint32_t {};
constexpr std::size_t index_of(OpId id) { return static_cast<std::size_t>(id); }
constexpr std::size_t index_of(TensorId id) { return static_cast<std::size_t>(id); }

// How a tensor came to be.
enum class Origin : std::uint8_t {
  kMade,      // allocated by its op
  kView,      // shares the storage of another: a view, a slice, or an in-place result
  kResident,  // was there before the step and stays: weights, buffers, workspaces kept
};

struct TensorInfo {
  std::string name;
  std::string formula;  // "T x 2I/tp x b", for people
  Leaf leaf = Leaf::kRuntimeActivations;
  Affine bytes;       // of the storage; a view's own size is not counted
  bool kept = false;  // outlives the step: a workspace made once, reused from then on
};

// Vertices and edges; defined in edges.hpp, so that only this part reads Boost.Graph's headers.
struct Edges;

// Movable, not copyable.
class OpGraph {
 public:
  OpGraph();
  ~OpGraph();
  OpGraph(OpGraph&&) noexcept;
  OpGraph& operator=(OpGraph&&) noexcept;
  OpGraph(const OpGraph&) = delete;
  OpGraph& operator=(const OpGraph&) = delete;

  // Appends an op; it runs after all earlier ones. `scope` says where ("layer 3", "sampler").
  OpId op(std::string name, std::string scope, const std::vector<TensorId>& reads = {});
  // `op` runs between the pieces that torch.compile and piecewise graphs cover.
  void set_between_pieces(OpId op) { op_infos_[index_of(op)].between_pieces = true; }
  // After `op` the engine returns cached memory to the driver.
  void set_empties_cache(OpId op) { op_infos_[index_of(op)].empties_cache = true; }
  // A tensor that `maker` allocates, after those it made before.
  TensorId make(OpId maker, TensorInfo info);
  // Another name for `base`'s storage, given by `by`.
  TensorId view(OpId by, TensorId base, std::string name);
  // Alive before the first op and after the last.
  TensorId resident(TensorInfo info);
  // `tensor` is still needed while `op` runs.
  void hold(TensorId tensor, OpId op);
  // ... while the newest op runs; nothing if there is none yet.
  void hold_to_here(TensorId tensor);

  struct OpInfo {
    std::string name;
    std::string scope;
    bool between_pieces = false;
    bool empties_cache = false;
  };

  [[nodiscard]] std::size_t op_count() const { return op_infos_.size(); }
  [[nodiscard]] std::size_t tensor_count() const { return tensor_infos_.size(); }
  [[nodiscard]] const OpInfo& info(OpId id) const { return op_infos_[index_of(id)]; }
  [[nodiscard]] const TensorInfo& info(TensorId id) const { return tensor_infos_[index_of(id)]; }
  [[nodiscard]] Origin origin(TensorId id) const { return origins_[index_of(id)]; }
  // The tensor whose storage this one shares; itself unless a view.
  [[nodiscard]] TensorId storage(TensorId id) const { return storages_[index_of(id)]; }

  // Graphviz text, for people who want to look.
  [[nodiscard]] std::string dot() const;

  // For the passes of this part.
  [[nodiscard]] const Edges& edges() const { return *edges_; }

 private:
  TensorId add_tensor(TensorInfo info, Origin origin, std::optional<TensorId> base);

  std::unique_ptr<Edges> edges_;
  std::vector<OpInfo> op_infos_;
  std::vector<TensorInfo> tensor_infos_;
  std::vector<Origin> origins_;
  std::vector<TensorId> storages_;
};

// A variable of the engine's own code. Assigning another tensor, dropping it or leaving the scope
// frees what it named, unless another name or a later read holds it - after the newest op, since
// the right-hand side of an assignment runs while the old value is still there.
class Variable {
 public:
  explicit Variable(OpGraph& graph) : graph_(&graph) {}
  Variable(OpGraph& graph, TensorId value) : graph_(&graph), value_(value) {}
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  Variable(Variable&&) = delete;
  Variable& operator=(Variable&&) = delete;
  ~Variable() { drop(); }

  Variable& operator=(TensorId value) {
    drop();
    value_ = value;
    return *this;
  }
  void drop() {
    if (value_) {
      graph_->hold_to_here(*value_);
      value_.reset();
    }
  }
  // The tensor named; the variable must name one.
  [[nodiscard]] TensorId operator*() const { return value_.value(); }
  [[nodiscard]] bool empty() const { return !value_.has_value(); }

 private:
  OpGraph* graph_;
  std::optional<TensorId> value_;
};

}  // namespace oomcast::opgraph
