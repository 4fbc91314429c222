// What a process takes on a card before it allocates anything: its context, and code it loads.
#include <cuda.h>

#include <string>
#include <vector>

#include "validation/probes/child.hpp"
#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"
#include "validation/schedule/probe_shapes.hpp"

namespace oomcast::validation {
namespace {

void check_driver(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS) {
    throw DeviceFailure(std::string(what) + ": driver error " + std::to_string(status));
  }
}

// A kernel of as many instructions, each of 16 bytes and needing the one before it.
std::string long_kernel(std::int64_t instructions) {
  std::string text =
      ".version 7.0\n.target sm_80\n.address_size 64\n"
      ".visible .entry code(.param .u64 out)\n{\n"
      ".reg .f32 %f<3>;\n.reg .b64 %p<3>;\n"
      "ld.param.u64 %p1, [out];\ncvta.to.global.u64 %p2, %p1;\n"
      "ld.global.f32 %f1, [%p2];\nld.global.f32 %f2, [%p2+4];\n";
  for (std::int64_t i = 0; i < instructions; ++i) {
    text += "fma.rn.f32 %f1, %f1, %f2, %f2;\n";
  }
  return text + "st.global.f32 [%p2], %f1;\nret;\n}\n";
}

// Compiled for this card, in the host's memory.
std::vector<char> compiled(const std::string& text) {
  CUlinkState linker = nullptr;
  check_driver(cuLinkCreate(0, nullptr, nullptr, &linker), "cuLinkCreate");
  void* image = nullptr;
  std::size_t size = 0;
  CUresult status = cuLinkAddData(linker, CU_JIT_INPUT_PTX, const_cast<char*>(text.c_str()),
                                  text.size() + 1, "code", 0, nullptr, nullptr);
  if (status == CUDA_SUCCESS) {
    status = cuLinkComplete(linker, &image, &size);
  }
  std::vector<char> out;
  if (status == CUDA_SUCCESS) {
    out.assign(static_cast<char*>(image), static_cast<char*>(image) + size);
  }
  cuLinkDestroy(linker);
  check_driver(status, "a module");
  return out;
}

// Loaded as lazily as the driver does it: the code is there once the kernel has run.
void load_and_run(const std::vector<char>& image, const Buffer& out) {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  check_driver(cuModuleLoadData(&module, image.data()), "cuModuleLoadData");
  check_driver(cuModuleGetFunction(&kernel, module, "code"), "cuModuleGetFunction");
  void* address = out.as<void>();
  void* arguments[] = {&address};
  check_driver(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
               "cuLaunchKernel");
}

}  // namespace

void context_child(const Settings& settings) {
  check(cudaFree(nullptr), "a context");
  if (settings.at("kernels") > 0) {
    constexpr std::int64_t kInstructionBytes = 16;
    const std::vector<char> image = compiled(long_kernel(kKernelCodeBytes / kInstructionBytes));
    const Buffer out(256);
    check(cudaMemset(out.as<void>(), 0, 256), "cudaMemset");
    for (std::int64_t i = 0; i < settings.at("kernels"); ++i) {
      load_and_run(image, out);
    }
    check(cudaDeviceSynchronize(), "kernels");
  }
  step_done();
}

Values context_probe(const Settings& settings) {
  const bool eager = settings.at("eager") != 0;
  const auto steps = steps_of_child(
      "context", settings, 1, {eager ? "CUDA_MODULE_LOADING=EAGER" : "CUDA_MODULE_LOADING=LAZY"});
  return {{"bytes", static_cast<double>(steps.front())}};
}

}  // namespace oomcast::validation
