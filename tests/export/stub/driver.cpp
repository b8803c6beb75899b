// A driver that writes down what it is asked, one JSON value a line, for one GPU that a test
// describes. Memory below 4096 is no GPU's, at and above 2^46 it is the second GPU's.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

static std::string said;
static int capability[2] = {9, 0}, shared_bytes = 232448, broken = 0, maps = 0;
static CUcontext current = nullptr;
static std::map<std::string, std::vector<int>> known;

template <typename T>
static std::string list(const T *values, size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; i++)
    text += (i ? ", " : "") + std::to_string((unsigned long long)values[i]);
  return text + "]";
}
static void say(const std::string &text) { said += text + "\n"; }

extern "C" {
const char *stub_said() { return said.c_str(); }
void stub_reset(int major, int minor, int shared, int fails) {
  capability[0] = major, capability[1] = minor, shared_bytes = shared, broken = fails;
  said.clear(), maps = 0;
}
void stub_kernel(const char *name, const int *bytes, int count) {
  known[name].assign(bytes, bytes + count);
}

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char **name) { return *name = "CUDA_ERROR_STUB", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char **text) { return *text = "in words", CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *found, CUdevice_attribute what, CUdevice) {
  *found = what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? capability[0]
         : what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability[1]
         : what == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 132
         : what == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? shared_bytes : -1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  return *context = (CUcontext)(uintptr_t)(0xC0 + device), CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) {
  return *device = int((uintptr_t)current - 0xC0), CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *to, CUpointer_attribute, CUdeviceptr at) {
  if (at < 4096) return CUDA_ERROR_INVALID_VALUE;
  *(int *)to = at >= 1ull << 46;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *) { return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  if (broken == 1) return CUDA_ERROR_INVALID_VALUE;
  say("{\"load\": " + list((const unsigned char *)image, 64) + "}");
  return *module = (CUmodule)image, CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name) {
  if (!known.count(name)) return CUDA_ERROR_INVALID_VALUE;
  *function = (CUfunction)known.find(name)->first.c_str();
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute what, int value) {
  say("{\"raise\": [\"" + std::string((const char *)f) + "\", " + std::to_string(what) + ", " +
      std::to_string(value) + "]}");
  return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr *to, size_t bytes, CUstream stream) {
  say("{\"allocate\": [" + std::to_string(bytes) + ", " + std::to_string((uintptr_t)stream) + "]}");
  return *to = 0x70000000, broken == 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemFreeAsync(CUdeviceptr, CUstream stream) {
  say("{\"free\": [" + std::to_string((uintptr_t)stream) + "]}");
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *to, CUtensorMapDataType kind, cuuint32_t rank,
                                void *address, const cuuint64_t *extents, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if ((uintptr_t)to % 64) return CUDA_ERROR_INVALID_VALUE;
  memset(to, ++maps, sizeof *to);
  int rest[] = {interleave, swizzle, promotion, fill};
  say("{\"encode\": [" + std::to_string(kind) + ", " + std::to_string((uintptr_t)address) + ", " +
      list(extents, rank) + ", " + list(strides, rank - 1) + ", " + list(box, rank) + ", " +
      list(steps, rank) + ", " + list(rest, 4) + "]}");
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **) {
  if (broken == 3) return CUDA_ERROR_INVALID_VALUE;
  unsigned grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ};
  unsigned block[] = {c->blockDimX, c->blockDimY, c->blockDimZ};
  const std::vector<int> &sizes = known[(const char *)f];
  std::string attributes, given;
  for (unsigned i = 0; i < c->numAttrs; i++)
    attributes += (i ? ", [" : "[") + std::to_string(c->attrs[i].id) + ", " +
                  list((const unsigned *)&c->attrs[i].value, 3) + "]";
  for (size_t i = 0; i < sizes.size(); i++)
    given += (i ? ", " : "") + list((const unsigned char *)params[i], sizes[i]);
  say("{\"launch\": [\"" + std::string((const char *)f) + "\", " + list(grid, 3) + ", " +
      list(block, 3) + ", " + std::to_string(c->sharedMemBytes) + ", " +
      std::to_string((uintptr_t)c->hStream) + ", [" + attributes + "], [" + given + "]]}");
  return CUDA_SUCCESS;
}
}
