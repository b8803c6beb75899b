// Launches by the CUDA driver: machine code for the GPU at hand, tensor maps, parameters.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>
#include <vector>

#include "contract.h"

namespace TILEWRIGHT_EXPORT {

// ── recipes ─────────────────────────────────────────────────────────────────────────────────

// How boxes of a tensor travel: the axes outermost first, as the tensor's own unless `shape` says
// otherwise, row-major unless `strides` does.
struct TensorMap {
  int tensor;
  CUtensorMapDataType dtype;
  int item, rank;
  unsigned box[5];
  CUtensorMapSwizzle swizzle;
  const Number *shape, *strides;
};

struct Param {
  enum Kind { POINTER, SCALAR, SIZE, MAP } kind;
  int index;  // of the tensor (scratch after the arguments), or of the scalar
  int offset, bytes;
  int64_t low, high;  // of a size
  Number value;
  const TensorMap *map;
};

struct Launch {
  const char *kernel;
  Number grid[3];
  unsigned threads, cluster[3], shared;
  bool programmatic;
  const Param *params;
  int param_count, param_bytes;
};

// Machine code for calls whose sizes are `multiples` and whose tensors begin on `align` bytes.
struct Form {
  const void *image;
  const Launch *launches;
  int launch_count;
  const Scratch *scratch;
  int scratch_count;
  const int64_t *multiples;
  const int *align;
};

enum Runs { ON_THIS_CHIP, ON_THIS_FAMILY, ON_LATER_CHIPS };

// Forms for one architecture, the last of which takes every call.
struct Variant {
  const char *arch;
  int major, minor;
  Runs runs;
  const int *align;
  const Form *forms;
  int form_count;
};

struct Kernel {
  Contract contract;
  const Variant *variants;
  int variant_count;
};

// ── the driver ──────────────────────────────────────────────────────────────────────────────

inline tw_status failed(CUresult status, const char *kernel, const char *what) {
  const char *name = nullptr, *text = nullptr;
  cuGetErrorName(status, &name);
  cuGetErrorString(status, &text);
  return refuse(TW_DRIVER, "%s: %s: %s (%s)", kernel, what, name ? name : "an unknown error",
                text ? text : "");
}

#define TW_CUDA(call_, what)                                            \
  do {                                                                  \
    if (CUresult result_ = (call_)) return failed(result_, name, what); \
  } while (0)

// Memory may be allocated while a stream is captured.
struct Relaxed {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  Relaxed() { cuThreadExchangeStreamCaptureMode(&mode); }
  ~Relaxed() { cuThreadExchangeStreamCaptureMode(&mode); }
};

struct Machine {
  CUdevice device = 0;
  CUcontext context = nullptr;
  const Variant *variant = nullptr;
  int sms = 0;
};

inline tw_status ask(const char *name, CUdevice device, CUdevice_attribute what, int &found) {
  TW_CUDA(cuDeviceGetAttribute(&found, what, device), "a GPU cannot be asked");
  return TW_OK;
}

// The context that is current, else the primary one of the first array's GPU, and the variant.
inline tw_status find_machine(const Kernel &kernel, const tw_tensor *const *tensors, Machine &m) {
  const char *name = kernel.contract.name;
  TW_CUDA(cuInit(0), "the CUDA driver does not start");
  TW_CUDA(cuCtxGetCurrent(&m.context), "no context");
  if (!m.context) {
    int ordinal = 0;
    for (int i = 0; i < kernel.contract.tensor_count; i++)
      if (tensors[i] && tensors[i]->data) {
        cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                              CUdeviceptr(tensors[i]->data));
        break;
      }
    TW_CUDA(cuDeviceGet(&m.device, ordinal), "there is no GPU");
    TW_CUDA(cuDevicePrimaryCtxRetain(&m.context, m.device), "no context");
    TW_CUDA(cuCtxSetCurrent(m.context), "no context");
  }
  TW_CUDA(cuCtxGetDevice(&m.device), "no device");
  static std::mutex guard;
  static std::map<std::pair<const Kernel *, CUdevice>, Machine> known;
  std::lock_guard<std::mutex> lock(guard);
  Machine &kept = known[{&kernel, m.device}];
  if (!kept.variant) {
    int major = 0, minor = 0;
    TW_TRY(ask(name, m.device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major));
    TW_TRY(ask(name, m.device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor));
    TW_TRY(ask(name, m.device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, kept.sms));
    char archs[128] = "";
    const Variant *best = nullptr;
    for (int i = 0; i < kernel.variant_count; i++) {
      const Variant &v = kernel.variants[i];
      size_t end = strlen(archs);
      snprintf(archs + end, sizeof archs - end, "%s%s", i ? ", " : "", v.arch);
      int own = 10 * v.major + v.minor, here = 10 * major + minor;
      if (own > here || (v.runs == ON_THIS_CHIP && own != here)) continue;
      if (v.runs == ON_THIS_FAMILY && v.major != major) continue;
      if (!best || v.runs < best->runs || (v.runs == best->runs && own > 10 * best->major + best->minor))
        best = &v;
    }
    if (!best)
      return refuse(TW_MACHINE, "%s: exported for %s; this GPU is sm_%d%d", name, archs, major,
                    minor);
    kept.variant = best;
  }
  m.variant = kept.variant;
  m.sms = kept.sms;
  return TW_OK;
}

inline tw_status check_places(const Call &call, const Machine &m) {
  const Contract &c = call.contract;
  for (int i = 0; i < c.tensor_count; i++) {
    if (!call.tensors[i] || !call.tensors[i]->data || is_empty(*call.tensors[i])) continue;
    int ordinal = -1;
    CUdevice device = -1;
    if (cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                              CUdeviceptr(call.tensors[i]->data)))
      return refuse(TW_CONTRACT, "%s: %s is not in memory that the GPU knows; expected memory of "
                    "cuMemAlloc or cudaMalloc", c.name, c.tensors[i].name);
    if (ordinal >= 0 && (cuDeviceGet(&device, ordinal) || device != m.device))
      return refuse(TW_CONTRACT, "%s: %s is on another GPU (%d) than the current one", c.name,
                    c.tensors[i].name, ordinal);
  }
  return TW_OK;
}

// The functions of a form in a context; loaded when first called.
inline tw_status functions(const char *name, const Form &form, const Machine &m,
                           const CUfunction *&found) {
  static std::mutex guard;
  static std::map<std::pair<const Form *, CUcontext>, std::vector<CUfunction>> loaded;
  std::lock_guard<std::mutex> lock(guard);
  std::vector<CUfunction> &kept = loaded[{&form, m.context}];
  if (kept.empty() && form.launch_count) {
    Relaxed relaxed;
    CUmodule module;
    int most_shared = 0;
    TW_TRY(ask(name, m.device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, most_shared));
    TW_CUDA(cuModuleLoadData(&module, form.image), "the code does not load");
    std::vector<CUfunction> all;
    for (int i = 0; i < form.launch_count; i++) {
      const Launch &l = form.launches[i];
      CUfunction function;
      TW_CUDA(cuModuleGetFunction(&function, module, l.kernel), "the code lacks a kernel");
      if (l.shared > unsigned(most_shared))
        return refuse(TW_MACHINE, "%s: it takes %u bytes of shared memory, this GPU has %d", name,
                      l.shared, most_shared);
      if (l.shared)
        TW_CUDA(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                   int(l.shared)), "shared memory");
      if (l.cluster[0] * l.cluster[1] * l.cluster[2] > 8)
        TW_CUDA(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                                   1), "clusters");
      all.push_back(function);
    }
    kept.swap(all);
  }
  found = kept.data();
  return TW_OK;
}

// ── a launch ────────────────────────────────────────────────────────────────────────────────

// A tensor as launches see it: an argument, or scratch.
struct Seen {
  uint64_t address;
  int rank;
  int64_t shape[TW_MAX_RANK], strides[TW_MAX_RANK];
};

inline tw_status encode(const Contract &c, const TensorMap &map, const Seen &seen,
                        const int64_t *values, const char *tensor, CUtensorMap *out) {
  const char *name = c.name;
  int64_t shape[5] = {0}, strides[5] = {0}, step = 1;
  int rank = map.rank;
  bool empty = false;
  for (int d = rank - 1; d >= 0; d--) {
    shape[d] = map.shape ? map.shape[d](values) : seen.shape[d];
    strides[d] = map.strides ? map.strides[d](values) : map.shape ? step : seen.strides[d];
    step = mul(step, shape[d]);
    empty |= shape[d] == 0;
  }
  if (undefined()) return refuse(TW_CONTRACT, "%s: a size does not follow from the arguments", name);
  // the encoder refuses empty tensors; zeros are no valid map: a kernel that copied would fault
  memset(out, 0, sizeof *out);
  if (empty) return TW_OK;
  if (seen.address % 16)
    return refuse(TW_CONTRACT, "%s: %s cannot be copied in bulk: its start %#llx is not a multiple "
                  "of 16", name, tensor, (unsigned long long)seen.address);
  if (shape[rank - 1] > 1 && strides[rank - 1] != 1)
    return refuse(TW_CONTRACT, "%s: %s cannot be copied in bulk: its innermost dimension is not "
                  "contiguous", name, tensor);
  cuuint64_t sizes[5], steps[5];
  cuuint32_t box[5], ones[5];
  for (int d = 0; d < rank; d++) {
    int at = rank - 1 - d;
    sizes[d] = cuuint64_t(shape[at]), box[d] = map.box[at], ones[d] = 1;
    int64_t bytes = mul(strides[at], map.item);
    // a stride along one element is never taken; the encoder checks it all the same
    if (shape[at] < 2) bytes = (most(bytes, 16) + 31) / 32 * 32;
    else if (d && (bytes % 16 || bytes < 0 || bytes >= int64_t(1) << 40))
      return refuse(TW_CONTRACT, "%s: %s cannot be copied in bulk: dimension %d has a stride of "
                    "%lld bytes; expected a multiple of 16 below 2^40", name, tensor, at,
                    (long long)bytes);
    if (d) steps[d - 1] = cuuint64_t(bytes);
    if (shape[at] > int64_t(1) << 32)
      return refuse(TW_CONTRACT, "%s: %s cannot be copied in bulk: it is %lld long", name, tensor,
                    (long long)shape[at]);
  }
  TW_CUDA(cuTensorMapEncodeTiled(out, map.dtype, cuuint32_t(rank), (void *)seen.address, sizes,
                                 steps, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, map.swizzle,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE), "a tensor map");
  return TW_OK;
}

inline tw_status launch(const Call &call, const Launch &l, CUfunction function, const Seen *seen,
                        tw_stream stream) {
  const Contract &c = call.contract;
  const char *name = c.name;
  static const int64_t limit[3] = {INT32_MAX, 65535, 65535};
  int64_t grid[3];
  bool nothing = false;
  for (int d = 0; d < 3; d++) {
    grid[d] = l.grid[d] ? l.grid[d](call.values) : 1;
    nothing |= grid[d] == 0;
  }
  if (undefined()) return refuse(TW_CONTRACT, "%s: a grid does not follow from the arguments", name);
  if (nothing) return TW_OK;
  for (int d = 0; d < 3; d++) {
    if (grid[d] < 0 || grid[d] > limit[d])
      return refuse(TW_CONTRACT, "%s: dimension %d of the grid is out of range: %lld, at most %lld",
                    name, d, (long long)grid[d], (long long)limit[d]);
    if (grid[d] % l.cluster[d])
      return refuse(TW_CONTRACT, "%s: clusters do not divide the grid: %lld blocks in dimension %d, "
                    "%u in a cluster", name, (long long)grid[d], d, l.cluster[d]);
  }
  std::vector<unsigned char> room(size_t(l.param_bytes) + 64);
  unsigned char *block = room.data();
  block += -uintptr_t(block) % 64;
  std::vector<void *> pointers;
  for (int i = 0; i < l.param_count; i++) {
    const Param &p = l.params[i];
    unsigned char *to = block + p.offset;
    pointers.push_back(to);
    if (p.kind == Param::POINTER) memcpy(to, &seen[p.index].address, 8);
    if (p.kind == Param::SCALAR) memcpy(to, call.scalars[p.index].raw, size_t(p.bytes));
    if (p.kind == Param::SIZE) {
      int64_t value = p.value(call.values);
      if (undefined() || value < p.low || value > p.high)
        return refuse(TW_CONTRACT, "%s: a size of %lld does not fit %d bytes", name,
                      (long long)value, p.bytes);
      memcpy(to, &value, size_t(p.bytes));
    }
    if (p.kind == Param::MAP) {
      int at = p.map->tensor;
      const char *tensor = at < c.tensor_count ? c.tensors[at].name : "scratch";
      TW_TRY(encode(c, *p.map, seen[at], call.values, tensor, (CUtensorMap *)to));
    }
  }
  CUlaunchAttribute attributes[2];
  memset(attributes, 0, sizeof attributes);
  CUlaunchConfig config;
  memset(&config, 0, sizeof config);
  if (l.cluster[0] * l.cluster[1] * l.cluster[2] > 1) {
    CUlaunchAttribute &a = attributes[config.numAttrs++];
    a.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    a.value.clusterDim.x = l.cluster[0];
    a.value.clusterDim.y = l.cluster[1];
    a.value.clusterDim.z = l.cluster[2];
  }
  if (l.programmatic) {
    CUlaunchAttribute &a = attributes[config.numAttrs++];
    a.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    a.value.programmaticStreamSerializationAllowed = 1;
  }
  config.gridDimX = unsigned(grid[0]), config.gridDimY = unsigned(grid[1]);
  config.gridDimZ = unsigned(grid[2]);
  config.blockDimX = l.threads, config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = l.shared;
  config.hStream = stream;
  config.attrs = config.numAttrs ? attributes : nullptr;
  TW_CUDA(cuLaunchKernelEx(&config, function, pointers.data(), nullptr), "it cannot be launched");
  return TW_OK;
}

inline bool takes(const Form &form, const Call &call) {
  for (int v = 0; v < call.contract.dim_count; v++)
    if (form.multiples[v] > 1 && call.values[v] % form.multiples[v]) return false;
  for (int i = 0; i < call.contract.tensor_count; i++)
    if (form.align[i] > 1 && given(call, i) && uintptr_t(call.tensors[i]->data) % form.align[i])
      return false;
  return true;
}

inline tw_status call(const Kernel &kernel, const tw_tensor *const *tensors, const Word *scalars,
                      tw_stream stream) {
  const Contract &c = kernel.contract;
  const char *name = c.name;
  Machine m;
  Call made = {c, tensors, scalars, {0}};
  TW_TRY(find_machine(kernel, tensors, m));
  TW_TRY(check(made, m.variant->align));
  TW_TRY(check_places(made, m));
  made.values[MAX_VALUES - 1] = m.sms;
  const Form *form = m.variant->forms;
  while (form + 1 < m.variant->forms + m.variant->form_count && !takes(*form, made)) form++;
  const CUfunction *found;
  TW_TRY(functions(name, *form, m, found));
  Seen seen[2 * MAX_TENSORS];
  for (int i = 0; i < c.tensor_count; i++) {
    Seen &s = seen[i];
    if (!given(made, i)) {
      s.address = 0;
      s.rank = 0;
      continue;
    }
    s.address = uint64_t(tensors[i]->data), s.rank = c.tensors[i].rank;
    memcpy(s.shape, tensors[i]->shape, sizeof s.shape);
    memcpy(s.strides, tensors[i]->strides, sizeof s.strides);
  }
  int64_t total = 0;
  for (int i = 0; i < form->scratch_count; i++) {
    const Scratch &scratch = form->scratch[i];
    Seen &s = seen[c.tensor_count + i];
    s.address = uint64_t(total), s.rank = scratch.rank;
    int64_t step = 1;
    for (int d = scratch.rank - 1; d >= 0; d--) {
      s.shape[d] = scratch.shape[d](made.values), s.strides[d] = step;
      step = mul(step, s.shape[d]);
    }
    total = floordiv(add(add(total, scratch_bytes(scratch, made.values)), 1023), 1024) * 1024;
  }
  if (undefined()) return refuse(TW_CONTRACT, "%s: a size does not follow from the arguments", name);
  CUdeviceptr memory = 0;
  if (form->scratch_count) {  // goes to the next call on the stream
    Relaxed relaxed;
    TW_CUDA(cuMemAllocAsync(&memory, size_t(most(total, 1)), stream), "no memory for scratch");
    for (int i = 0; i < form->scratch_count; i++) seen[c.tensor_count + i].address += memory;
  }
  tw_status status = TW_OK;
  for (int i = 0; i < form->launch_count && !status; i++)
    status = launch(made, form->launches[i], found[i], seen, stream);
  if (memory && cuMemFreeAsync(memory, stream) && !status)
    status = refuse(TW_DRIVER, "%s: scratch cannot be freed", name);
  return status;
}

}  // namespace TILEWRIGHT_EXPORT
