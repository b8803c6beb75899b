// Exported kernels on a GPU, from C++: sums of small integers, which are exact.
#include <cuda.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "programs.h"

extern "C" {  // under the names that libcuda has
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuCtxSynchronize(void);
}

static void must(int status, const char *what) {
  if (status) printf("%s: %d %s\n", what, status, programs_message()), exit(1);
}

static uint16_t half(float x) {  // of a small integer, or of a quarter of one
  if (x == 0) return 0;
  int exponent;
  float part = std::frexp(std::fabs(x), &exponent);  // 0.5 … 1
  return uint16_t((x < 0) << 15 | (exponent + 14) << 10 | int(part * 2048 - 1024));
}
static float whole(uint16_t h) {
  if (!(h & 0x7fff)) return 0;
  return std::ldexp(float(1024 + (h & 1023)), ((h >> 10) & 31) - 25) * (h >> 15 ? -1 : 1);
}

struct Array {
  tw_tensor t;
  std::vector<float> values;
  CUdeviceptr at;
  int item;

  Array(tw_dtype kind, std::vector<int64_t> shape, int seed = -1, int offset = 0) {
    int64_t count = 1;
    for (int64_t n : shape) count *= n;
    item = kind == TW_FLOAT16 ? 2 : 4;
    values.resize(size_t(count));
    std::vector<uint16_t> halves(values.size());
    for (size_t i = 0; i < values.size(); i++) {
      values[i] = seed < 0 ? 99 : float(int((i * 7 + i / 13 * 5 + size_t(seed)) % 5) - 2);
      halves[i] = half(values[i]);
    }
    must(cuMemAlloc_v2(&at, size_t(count) * 4 + 64), "memory");
    at += CUdeviceptr(offset * item);
    if (count)
      must(cuMemcpyHtoD_v2(at, item == 2 ? (void *)halves.data() : values.data(),
                           values.size() * size_t(item)), "copy");
    t = tw_array((void *)at, kind, int32_t(shape.size()), shape.data());
  }
  void fetch() {
    std::vector<uint16_t> halves(values.size());
    void *to = item == 2 ? (void *)halves.data() : values.data();
    must(cuCtxSynchronize(), "it failed");
    must(cuMemcpyDtoH_v2(to, at, values.size() * size_t(item)), "copy");
    if (item == 2)
      for (size_t i = 0; i < values.size(); i++) values[i] = whole(halves[i]);
  }
};

static int wrong = 0;
static void compare(const char *what, const std::vector<float> &got, const std::vector<float> &want,
                    float bound = 0) {
  for (size_t i = 0; i < want.size(); i++)
    if (!(std::fabs(got[i] - want[i]) <= bound)) {
      printf("%s: element %zu is %g, not %g\n", what, i, got[i], want[i]);
      wrong++;
      return;
    }
  printf("%s: fine\n", what);
}

// A[m, k] times B[k, n], or B[n, k] where it is `turned`.
static std::vector<float> product(const Array &a, const Array &b, int m, int n, int k, bool turned) {
  std::vector<float> c(size_t(m) * size_t(n));
  for (int i = 0; i < m; i++)
    for (int l = 0; l < k; l++)
      for (int j = 0; j < n; j++)
        c[size_t(i * n + j)] +=
            a.values[size_t(i * k + l)] * b.values[size_t(turned ? j * k + l : l * n + j)];
  return c;
}

int main() {
  CUdevice device;
  CUcontext context;
  must(cuInit(0), "driver");
  must(cuDeviceGet(&device, 0), "device");
  must(cuDevicePrimaryCtxRetain(&context, device), "context");
  must(cuCtxSetCurrent(context), "context");
  {
    Array a(TW_FLOAT16, {512, 256}, 1), b(TW_FLOAT16, {256, 384}, 2), c(TW_FLOAT32, {512, 384});
    must(programs_product(&a.t, &b.t, &c.t, 0), "product");
    c.fetch();
    compare("product", c.values, product(a, b, 512, 384, 256, false));
    tw_tensor host = a.t;
    host.data = a.values.data();
    int status = programs_product(&host, &b.t, &c.t, 0);
    printf("host memory: %d %s\n", status, programs_message());
    c.t.shape[1] = 383;
    status = programs_product(&a.t, &b.t, &c.t, 0);
    printf("shape: %d %s\n", status, programs_message());
  }
  const int sizes[][4] = {{256, 512, 64, 0}, {100, 264, 72, 0}, {100, 264, 72, 1}, {3, 5, 7, 0}};
  for (auto &s : sizes) {
    int m = s[0], n = s[1], k = s[2];
    Array a(TW_FLOAT16, {m, k}, 3, s[3]), b(TW_FLOAT16, {n, k}, 4), c(TW_FLOAT16, {m, n});
    must(programs_open_product(&a.t, &b.t, &c.t, 0), "open_product");
    c.fetch();
    compare("open_product", c.values, product(a, b, m, n, k, true));
  }
  {
    Array a(TW_FLOAT16, {256, 256}, 5), b(TW_FLOAT16, {256, 256});
    must(programs_clustered(&a.t, &b.t, 0), "clustered");
    b.fetch();
    compare("clustered", b.values, product(a, a, 256, 256, 256, false));
  }
  {
    Array a(TW_FLOAT16, {256, 64}, 6), c(TW_FLOAT32, {256, 64});
    std::vector<float> want(256 * 64);
    for (int i = 0; i < 256; i++)
      for (int j = 0; j < 64; j++)
        want[size_t(i * 64 + j)] = a.values[size_t((255 - i) * 64 + 63 - j)] * 2 + 1;
    for (int i = 0; i < 3; i++) must(programs_two_steps(&a.t, &c.t, 0), "two_steps");
    c.fetch();
    compare("two_steps", c.values, want);
  }
  {
    Array x(TW_FLOAT32, {40, 24}, 7), y(TW_FLOAT32, {40, 24});
    std::vector<float> want(40 * 24);
    for (size_t i = 0; i < 40; i++) {
      double sum = 0;
      for (size_t j = 0; j < 24; j++) sum += std::exp(double(x.values[i * 24 + j]));
      for (size_t j = 0; j < 24; j++)
        want[i * 24 + j] = float(std::exp(double(x.values[i * 24 + j])) / sum);
    }
    must(programs_softmax(&x.t, &y.t, 0), "softmax");
    y.fetch();
    compare("softmax", y.values, want, 1e-6f);
  }
  return wrong != 0;
}
