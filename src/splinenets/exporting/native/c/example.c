/* ./classify network.native picture.ppm: what a network says to a picture, PPM or PGM, of the size that it takes. */
#include "preparation.h"
#include "splinenets.h"

#include <stdio.h>
#include <stdlib.h>

#define NEED(holds, what) \
  if (!(holds)) return fprintf(stderr, "%s\n", what), 2

int main(int count, char** words) {
  char message[200], kind;
  int width, height, most;
  splinenets_description about;
  NEED(count == 3, "usage: classify NETWORK PICTURE");
  splinenets_network* network = splinenets_load(words[1], 1, message, sizeof message);
  NEED(network, message);
  splinenets_describe(network, &about);
  NEED(about.conditions == 0, "this example has nothing to tell the network");
  FILE* file = fopen(words[2], "rb");
  NEED(file && fscanf(file, "P%c %d %d %d", &kind, &width, &height, &most) == 4 && fgetc(file) != EOF, "no PPM or PGM");
  NEED((kind == '6' ? 3 : 1) == about.channels && width == about.width && height == about.height, "another size");
  size_t pixels = (size_t)(about.height * about.width), size = (size_t)about.channels * pixels, best = 0;
  unsigned char* bytes = malloc(size);
  float *image = malloc(size * sizeof(float)), *outputs = malloc((size_t)about.outputs * sizeof(float));
  NEED(bytes && image && outputs && fread(bytes, 1, size, file) == size, "the picture ends too early");
  prepare(bytes, image, about.channels, (int64_t)pixels);
  splinenets_run(network, image, NULL, outputs, 1);
  for (size_t i = 0; i < (size_t)about.outputs; i++) {
    if (outputs[i] > outputs[best]) best = i;
    printf("%.9g\n", outputs[i]);
  }
  printf("class %d; names are in the metadata, %.60s...\n", (int)best, about.metadata);
  splinenets_free(network);
  return 0;
}
