/* Exported networks without Python: load a file, ask what it is, run it, free it.
 *
 * Functions may be called from any thread; calls of one network at the same time must not overlap. */
#ifndef SPLINENETS_H
#define SPLINENETS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct splinenets_network splinenets_network;

typedef struct {
  int64_t channels, height, width; /* of an image */
  int64_t outputs;                 /* numbers that come out for an image: logits */
  int64_t conditions;              /* numbers that the network is told beside an image, mostly none */
  const char* metadata;            /* JSON: classes, how to prepare an image, ...; lives as long as the network */
} splinenets_description;

typedef struct {
  const char* name; /* a condition of several numbers has its name several times */
  double low, high; /* its range */
} splinenets_condition;

/* A network from a .native file, for this many threads. NULL where that cannot be: then `message`, of `size` bytes, says
 * why. A file is data: one that was made to do harm is refused, or computes nonsense inside its own memory. */
splinenets_network* splinenets_load(const char* path, int threads, char* message, size_t size);

/* The same from a file's content, which is copied. */
splinenets_network* splinenets_open(const void* content, size_t length, int threads, char* message, size_t size);

void splinenets_describe(const splinenets_network* network, splinenets_description* to);

/* The n-th number that the network is told, from 0; its name is NULL where there is none. */
splinenets_condition splinenets_condition_at(const splinenets_network* network, int64_t n);

/* `count` images (count, channels, height, width) and conditions (count, conditions), NULL where there are none, give
 * outputs (count, outputs). 0, or 1 if a condition lies outside its range, and then nothing is written. */
int splinenets_run(splinenets_network* network, const float* images, const float* conditions, float* outputs, int64_t count);

void splinenets_free(splinenets_network* network);

#ifdef __cplusplus
}
#endif

#endif
