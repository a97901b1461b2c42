/* Launches a compiled kernel with arguments that Python gives as numbers, in one call: it encodes the kernel's tensor
 * descriptors, which takes Triton's function a call each, and reads no list, no tuple and no object beside ints.
 *
 * `native_launch.py` compiles this file, binds the functions of the driver, and makes a Launch for each kernel. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_VALUES = 96, MOST_SLOTS = 128, MOST_MAPS = 12, MOST_AXES = 5, FIXED = 4 };
enum { INT32, INT64, MAP };

static CUresult (*launch_kernel)(const CUlaunchConfig *, CUfunction, void **, void **);
static CUresult (*encode_tiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
static CUresult (*current_context)(CUcontext *);
static CUresult (*set_context)(CUcontext);
static CUresult (*retain_context)(CUcontext *, CUdevice);
static CUresult (*error_text)(CUresult, const char **);
static CUresult (*driver_version)(int *);
/* Up to this driver, the copy engine needs a bit of the descriptor of a small tensor to be 0 (as CUTLASS has it). */
enum { LAST_WITH_BIT = 13010, SMALL = 128 * 1024 };
static int clears_bit = 1;

typedef struct {
  int kind, value; /* of a MAP: its number */
} Slot;

typedef struct {
  int swizzle, size, type, rank;
  cuuint32_t block[MOST_AXES]; /* the innermost axis first, as the driver takes them */
  int address, shape[MOST_AXES], strides[MOST_AXES];
} Map;

typedef struct {
  PyObject_HEAD vectorcallfunc call;
  CUfunction function;
  unsigned threads, shared;
  int dependent, device;
  int given, values, slots, maps;
  int64_t constants[MOST_VALUES]; /* of values that are not given */
  Slot slot[MOST_SLOTS];
  Map map[MOST_MAPS];
} Launch;

static PyObject *failed(CUresult code, const char *doing) {
  const char *text = NULL;
  error_text(code, &text);
  PyErr_Format(PyExc_RuntimeError, "CUDA error while %s: %s", doing, text ? text : "unknown");
  return NULL;
}

/* before => after: values, map => its descriptor. */
static CUresult encode(CUtensorMap *made, const Map *map, const int64_t *values) {
  static const cuuint32_t ones[MOST_AXES] = {1, 1, 1, 1, 1};
  cuuint64_t shape[MOST_AXES], strides[MOST_AXES];
  int64_t last = 0;
  int rank = map->rank;
  for (int axis = 0; axis < rank; axis++)
    shape[axis] = (cuuint64_t)values[map->shape[axis]];
  for (int axis = 1; axis < rank; axis++)
    strides[axis - 1] = (cuuint64_t)values[map->strides[axis]] * map->size;
  CUresult code = encode_tiled(made, map->type, rank, (void *)(uintptr_t)values[map->address], shape, strides, map->block,
                               ones, CU_TENSOR_MAP_INTERLEAVE_NONE, map->swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS || !clears_bit)
    return code;
  for (int axis = 0; axis < rank; axis++)
    last += ((int64_t)shape[axis] - 1) * (axis ? (int64_t)strides[axis - 1] : map->size);
  if (last + 1 < SMALL)
    ((uint64_t *)made)[1] &= ~(1ull << 21);
  return code;
}

static int own_context(int device) {
  CUcontext context = NULL;
  CUresult code = current_context(&context);
  if (code == CUDA_SUCCESS && context)
    return 1;
  if (code == CUDA_SUCCESS)
    code = retain_context(&context, device);
  if (code == CUDA_SUCCESS)
    code = set_context(context);
  if (code != CUDA_SUCCESS)
    failed(code, "taking a context");
  return code == CUDA_SUCCESS;
}

/* launch(grid_x, grid_y, grid_z, stream, *values) */
static PyObject *launch(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names) {
  const Launch *own = (const Launch *)self;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count != FIXED + own->given || (names && PyTuple_GET_SIZE(names))) {
    PyErr_Format(PyExc_TypeError, "a launch of %d values got %zd arguments", own->given, count);
    return NULL;
  }
  int64_t fixed[FIXED], values[MOST_VALUES];
  for (int n = 0; n < count; n++) {
    int64_t value = PyLong_AsLongLong(arguments[n]);
    if (value == -1 && PyErr_Occurred())
      return NULL;
    *(n < FIXED ? &fixed[n] : &values[n - FIXED]) = value;
  }
  for (int n = own->given; n < own->values; n++)
    values[n] = own->constants[n];
  for (int n = 0; n < 3; n++) {
    if (fixed[n] < 0 || fixed[n] > INT32_MAX) {
      PyErr_Format(PyExc_OverflowError, "a grid of %lld programs", (long long)fixed[n]);
      return NULL;
    }
  }
  if (!fixed[0] || !fixed[1] || !fixed[2])
    Py_RETURN_NONE;
  if (!own_context(own->device))
    return NULL;
  CUtensorMap made[MOST_MAPS];
  for (int n = 0; n < own->maps; n++) {
    CUresult code = encode(&made[n], &own->map[n], values);
    if (code != CUDA_SUCCESS)
      return failed(code, "encoding a tensor descriptor");
  }
  static const CUdeviceptr none = 0;
  void *parameters[MOST_SLOTS + 2];
  for (int n = 0; n < own->slots; n++) {
    const Slot *slot = &own->slot[n];
    if (slot->kind == MAP) {
      parameters[n] = &made[slot->value];
      continue;
    }
    /* (a parameter of 32 bits is the lower half of the value: the first one in memory, which the maker tests) */
    parameters[n] = &values[slot->value];
    if (slot->kind == INT32 && values[slot->value] != (int32_t)values[slot->value]) {
      PyErr_Format(PyExc_OverflowError, "%lld as an argument of 32 bits", (long long)values[slot->value]);
      return NULL;
    }
  }
  /* Triton's kernels end with the addresses of two buffers, which these do not have. */
  parameters[own->slots] = parameters[own->slots + 1] = (void *)&none;
  CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config = {
      .gridDimX = (unsigned)fixed[0], .gridDimY = (unsigned)fixed[1], .gridDimZ = (unsigned)fixed[2],
      .blockDimX = own->threads,      .blockDimY = 1,                 .blockDimZ = 1,
      .sharedMemBytes = own->shared,  .hStream = (CUstream)(uintptr_t)fixed[3],
      .attrs = &attribute,            .numAttrs = own->dependent ? 1 : 0,
  };
  CUresult code;
  Py_BEGIN_ALLOW_THREADS
  code = launch_kernel(&config, own->function, parameters, NULL);
  Py_END_ALLOW_THREADS
  if (code != CUDA_SUCCESS)
    return failed(code, "launching a kernel");
  Py_RETURN_NONE;
}

static PyTypeObject LaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "neptune_launch.Launch",
    .tp_basicsize = sizeof(Launch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Launch, call),
    .tp_call = PyVectorcall_Call,
};

/* Reads the ints of a tuple, in reverse; -1 if there are others than `count` below `limit`. */
static int reversed_ints(PyObject *given, int *into, int count, int limit) {
  if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != count)
    return -1;
  for (int n = 0; n < count; n++) {
    long value = PyLong_AsLong(PyTuple_GET_ITEM(given, n));
    if ((value == -1 && PyErr_Occurred()) || value < 0 || value >= limit)
      return -1;
    into[count - 1 - n] = (int)value;
  }
  return 0;
}

/* The number of the descriptor whose parts a tuple holds is noted; -1 if it is not one. */
static int read_map(Launch *made, PyObject *parts) {
  Map *map = &made->map[made->maps];
  PyObject *block, *shape, *strides;
  int sizes[MOST_AXES];
  if (made->maps == MOST_MAPS || !PyTuple_Check(parts) ||
      !PyArg_ParseTuple(parts, "iiiO!iO!O!", &map->swizzle, &map->size, &map->type, &PyTuple_Type, &block, &map->address,
                        &PyTuple_Type, &shape, &PyTuple_Type, &strides))
    return -1;
  map->rank = (int)PyTuple_GET_SIZE(block);
  if (map->rank < 1 || map->rank > MOST_AXES || map->address < 0 || map->address >= made->values ||
      reversed_ints(block, sizes, map->rank, INT32_MAX) ||
      reversed_ints(shape, map->shape, map->rank, made->values) ||
      reversed_ints(strides, map->strides, map->rank, made->values))
    return -1;
  for (int axis = 0; axis < map->rank; axis++)
    map->block[axis] = (cuuint32_t)sizes[axis];
  return made->maps++;
}

/* make(function, threads, shared, dependent, device, given, constants, slots): slots are pairs of a kind and the number
 * of a value, or MAP and the parts of a descriptor; values are those that a call gives, and then the constants. */
static PyObject *make(PyObject *module, PyObject *arguments) {
  unsigned long long function;
  unsigned threads, shared;
  int dependent, device, given;
  PyObject *constants, *slots;
  if (!PyArg_ParseTuple(arguments, "KIIpiiO!O!", &function, &threads, &shared, &dependent, &device, &given,
                        &PyTuple_Type, &constants, &PyTuple_Type, &slots))
    return NULL;
  Py_ssize_t kept = PyTuple_GET_SIZE(constants), count = PyTuple_GET_SIZE(slots);
  uint16_t one = 1;
  if (given < 0 || given + kept > MOST_VALUES || count > MOST_SLOTS || *(uint8_t *)&one != 1) {
    PyErr_SetString(PyExc_ValueError, "more arguments than a launch takes");
    return NULL;
  }
  Launch *made = PyObject_New(Launch, &LaunchType);
  if (!made)
    return NULL;
  made->call = launch;
  made->function = (CUfunction)(uintptr_t)function;
  made->threads = threads, made->shared = shared, made->dependent = dependent, made->device = device;
  made->given = given, made->values = given + (int)kept, made->slots = (int)count, made->maps = 0;
  for (Py_ssize_t n = 0; n < kept; n++) {
    made->constants[given + n] = PyLong_AsLongLong(PyTuple_GET_ITEM(constants, n));
    if (PyErr_Occurred())
      goto wrong;
  }
  for (Py_ssize_t n = 0; n < count; n++) {
    Slot *slot = &made->slot[n];
    PyObject *what;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(slots, n), "iO", &slot->kind, &what))
      goto wrong;
    slot->value = slot->kind == MAP ? read_map(made, what) : (int)PyLong_AsLong(what);
    if (PyErr_Occurred() || slot->value < 0 || slot->kind < INT32 || slot->kind > MAP ||
        (slot->kind != MAP && slot->value >= made->values)) {
      if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "argument %zd of a launch is none", n);
      goto wrong;
    }
  }
  return (PyObject *)made;
wrong:
  Py_DECREF(made);
  return NULL;
}

/* bind(addresses of the driver's functions, in the order below) */
static PyObject *bind(PyObject *module, PyObject *arguments) {
  unsigned long long found[7];
  int version = 0;
  if (!PyArg_ParseTuple(arguments, "KKKKKKK", found, found + 1, found + 2, found + 3, found + 4, found + 5, found + 6))
    return NULL;
  launch_kernel = (void *)(uintptr_t)found[0];
  encode_tiled = (void *)(uintptr_t)found[1];
  current_context = (void *)(uintptr_t)found[2];
  set_context = (void *)(uintptr_t)found[3];
  retain_context = (void *)(uintptr_t)found[4];
  error_text = (void *)(uintptr_t)found[5];
  driver_version = (void *)(uintptr_t)found[6];
  CUresult code = driver_version(&version);
  if (code != CUDA_SUCCESS)
    return failed(code, "reading the driver's version");
  clears_bit = version <= LAST_WITH_BIT;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS, "Takes the addresses of the driver's functions."},
    {"make", make, METH_VARARGS, "A function that launches one kernel."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "neptune_launch", NULL, -1, methods};

PyMODINIT_FUNC PyInit_neptune_launch(void) {
  return PyType_Ready(&LaunchType) < 0 ? NULL : PyModule_Create(&definition);
}
