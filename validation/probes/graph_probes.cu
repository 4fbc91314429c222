#include <vector>

#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"
#include "validation/schedule/probe_shapes.hpp"

namespace oomcast::validation {
namespace {

__global__ void node_kernel(float* out, const float* in, float factor, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) {
    out[i] = in[i] * factor;
  }
}

class Graph {
 public:
  Graph() { check(cudaGraphCreate(&graph_, 0), "cudaGraphCreate"); }
  explicit Graph(cudaGraph_t captured) : graph_(captured) {}
  ~Graph() { cudaGraphDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  cudaGraph_t get() const { return graph_; }

 private:
  cudaGraph_t graph_ = nullptr;
};

// Instances of graphs, all alive at once.
class Executables {
 public:
  Executables() = default;
  ~Executables() {
    for (cudaGraphExec_t executable : all_) {
      cudaGraphExecDestroy(executable);
    }
  }
  Executables(const Executables&) = delete;
  Executables& operator=(const Executables&) = delete;

  // Uploaded, so that the driver's memory for it is there.
  cudaGraphExec_t add(cudaGraph_t graph, const Stream& stream) {
    cudaGraphExec_t executable = nullptr;
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    all_.push_back(executable);
    check(cudaGraphUpload(executable, stream.get()), "cudaGraphUpload");
    return executable;
  }

 private:
  std::vector<cudaGraphExec_t> all_;
};

// A chain, as a step of an engine is: each node waits for the one before it.
void add_chain(const Graph& graph, const Settings& settings, const Buffer& a, const Buffer& b) {
  constexpr std::int64_t kCount = 256;
  cudaGraphNode_t last = nullptr;
  float* out = a.as<float>();
  const float* in = b.as<float>();
  float factor = 0.5f;
  std::int64_t count = kCount;
  void* arguments[] = {&out, &in, &factor, &count};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(node_kernel);
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(static_cast<unsigned>(kCount));
  kernel.kernelParams = arguments;
  for (std::int64_t i = 0; i < settings.at("nodes"); ++i) {
    cudaGraphNode_t node = nullptr;
    check(cudaGraphAddKernelNode(&node, graph.get(), last == nullptr ? nullptr : &last,
                                 last == nullptr ? 0 : 1, &kernel),
          "cudaGraphAddKernelNode");
    last = node;
  }
  for (std::int64_t i = 0; i < settings.at("copies"); ++i) {
    cudaGraphNode_t node = nullptr;
    check(cudaGraphAddMemcpyNode1D(&node, graph.get(), last == nullptr ? nullptr : &last,
                                   last == nullptr ? 0 : 1, a.as<void>(), b.as<void>(),
                                   static_cast<std::size_t>(kCount) * sizeof(float),
                                   cudaMemcpyDeviceToDevice),
          "cudaGraphAddMemcpyNode1D");
    last = node;
  }
}

// Takes memory from the graphs' own pool and gives it back within the graph.
cudaGraph_t captured_with_pool(const Stream& stream) {
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed),
        "cudaStreamBeginCapture");
  void* memory = nullptr;
  const cudaError_t taken =
      cudaMallocAsync(&memory, static_cast<std::size_t>(kGraphPoolBytes), stream.get());
  if (taken == cudaSuccess) {
    node_kernel<<<1, 256, 0, stream.get()>>>(static_cast<float*>(memory),
                                             static_cast<const float*>(memory), 0.5f, 256);
    cudaFreeAsync(memory, stream.get());
  }
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
  check(taken, "cudaMallocAsync");
  return graph;
}

}  // namespace

Values graph_probe(const Settings& settings) {
  const Buffer a(4096);
  const Buffer b(4096);
  const Stream stream;
  const Graph graph;
  add_chain(graph, settings, a, b);
  const std::int64_t before = free_bytes();
  Executables executables;
  for (std::int64_t i = 0; i < kGraphCopies; ++i) {
    executables.add(graph.get(), stream);
  }
  stream.wait();
  const std::int64_t taken = before - free_bytes();
  return {{"bytes", static_cast<double>(taken) / static_cast<double>(kGraphCopies)}};
}

Values graph_pool_probe(const Settings& settings) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const Stream stream;
  const std::int64_t before = free_bytes();
  std::int64_t taken = 0;
  {
    Executables executables;
    for (std::int64_t i = 0; i < settings.at("graphs"); ++i) {
      const Graph graph(captured_with_pool(stream));
      check(cudaGraphLaunch(executables.add(graph.get(), stream), stream.get()), "cudaGraphLaunch");
      stream.wait();
    }
    taken = before - free_bytes();
  }
  check(cudaDeviceGraphMemTrim(device), "cudaDeviceGraphMemTrim");
  return {{"bytes", static_cast<double>(taken)}};
}

}  // namespace oomcast::validation
