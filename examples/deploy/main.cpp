// A program that has no Python: two exported kernels, and a call that breaks a contract.
#include <cstdio>
#include <vector>

#include "kernels.h"

int main() {
  const int64_t shape[] = {3, 256}, columns[] = {256};
  std::vector<float> x(3 * 256), bias(256, 0.5f), y(3 * 256), p(3 * 256);
  for (size_t i = 0; i < x.size(); i++) x[i] = float(i % 256) / 256;

  tw_tensor X = tw_array(x.data(), TW_FLOAT32, 2, shape);
  tw_tensor B = tw_array(bias.data(), TW_FLOAT32, 1, columns);
  tw_tensor Y = tw_array(y.data(), TW_FLOAT32, 2, shape);
  tw_tensor P = tw_array(p.data(), TW_FLOAT32, 2, shape);
  if (kernels_add_bias(&X, &B, 2.0f, &Y, 0) || kernels_softmax(&Y, &P, 0)) {
    fprintf(stderr, "%s\n", kernels_message());
    return 1;
  }
  double sum = 0;
  for (size_t j = 0; j < 256; j++) sum += p[j];
  printf("y[0][255] = %g, a row of p sums to %.3f\n", y[255], sum);

  Y.shape[1] = 255;
  if (kernels_softmax(&Y, &P, 0) == TW_CONTRACT) printf("refused: %s\n", kernels_message());
}
