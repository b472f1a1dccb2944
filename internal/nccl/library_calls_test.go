package nccl

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"symmem/internal/dl/dltest"
)

// prelude defines the types of nccl.h and the functions that the recorder does not generate.
const prelude = `
typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef enum { ncclSuccess } ncclResult_t;
typedef enum { ncclInt8 } ncclDataType_t;
typedef enum { ncclSum, ncclMaxRedOp = 0x7fffffff } ncclRedOp_t;
typedef enum { ncclScalarDevice } ncclScalarResidence_t;
typedef struct ncclConfig ncclConfig_t;
#ifndef VERSION
#define VERSION 22809
#endif
ncclResult_t ncclGetVersion(int *version) { *version = VERSION; return 0; }
const char *ncclGetErrorString(ncclResult_t result) {
	return result == 5 ? "invalid usage" : "some other error";
}
const char *ncclGetLastError(ncclComm_t comm) {
	return comm ? "not the process's" : "Duplicate GPU detected";
}
`

// declarations contains declarations from nccl.h 2.29.7.
const declarations = `
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
	ncclUniqueId *commIds, ncclConfig_t *config)
ncclResult_t ncclCommAbort(ncclComm_t comm)
ncclResult_t ncclCommDestroy(ncclComm_t comm)
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
	ncclScalarResidence_t residence, ncclComm_t comm)
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
ncclResult_t ncclGroupStart(void)
ncclResult_t ncclGroupEnd(void)
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
	ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
	ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
	ncclComm_t comm, cudaStream_t stream)
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
	ncclComm_t comm, cudaStream_t stream)`

// newerDeclarations contains functions that NCCL added together with windows or later.
const newerDeclarations = `
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
	int winFlags)
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
ncclResult_t ncclCommResume(ncclComm_t comm)
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)`

// compile builds a library that claims to be the given version of NCCL. The library's functions
// record their calls.
func compile(t testing.TB, version, declarations string) string {
	t.Helper()
	return dltest.Compile(t, "libnccl_recorder.so", dltest.Source(t, prelude, declarations),
		"-DVERSION="+version)
}

func load(t testing.TB, version, declarations string) (*Library, *dltest.Recorder) {
	t.Helper()
	path := compile(t, version, declarations)
	library, err := openFirst(singleLocation(path))
	if err != nil {
		t.Fatal(err)
	}

	return library, dltest.Open(t, path)
}

func singleLocation(path string) []location {
	return []location{{origin: "the test", paths: []string{path}}}
}

const (
	// Addresses and counts have bits above the 32nd, so that truncated arguments are detected.
	address      = 0x7fab_cdef_0000
	otherAddress = 0x7012_3456_0000
	comm         = 0x5500_0000_0100
	stream       = 0x7700_0000_0010
	bigCount     = 5 << 33
	anyAddress   = int64(-1 << 62) // matches any address except 0
)

func queue(c Invocation) error { return c.On(stream) }

// calls lists methods. For each, it holds the C function that the method must call and the
// arguments that it must pass.
var calls = map[string]struct {
	call func(l *Library) error
	name string
	args []int64
}{
	"all-reduce": {
		func(l *Library) error {
			return queue(l.AllReduce(address, otherAddress, bigCount, Float32, Max, comm))
		},
		"ncclAllReduce",
		[]int64{address, otherAddress, bigCount, 7, 2, comm, stream},
	},
	"all-gather": {
		func(l *Library) error {
			return queue(l.AllGather(address, otherAddress, bigCount, BFloat16, comm))
		},
		"ncclAllGather",
		[]int64{address, otherAddress, bigCount, 9, comm, stream},
	},
	"reduce-scatter": {
		func(l *Library) error {
			return queue(l.ReduceScatter(address, otherAddress, bigCount, Float16, Avg, comm))
		},
		"ncclReduceScatter",
		[]int64{address, otherAddress, bigCount, 6, 4, comm, stream},
	},
	"broadcast": {
		func(l *Library) error {
			return queue(l.Broadcast(address, otherAddress, bigCount, Float64, 3, comm))
		},
		"ncclBroadcast",
		[]int64{address, otherAddress, bigCount, 8, 3, comm, stream},
	},
	"reduce, with its last two arguments on the stack": {
		func(l *Library) error {
			return queue(l.Reduce(address, otherAddress, bigCount, Int64, Min, 5, comm))
		},
		"ncclReduce",
		[]int64{address, otherAddress, bigCount, 4, 3, 5, comm, stream},
	},
	"all-to-all": {
		func(l *Library) error { return queue(l.AlltoAll(address, otherAddress, bigCount, Uint8, comm)) },
		"ncclAlltoAll",
		[]int64{address, otherAddress, bigCount, 1, comm, stream},
	},
	"send": {
		func(l *Library) error { return queue(l.Send(address, bigCount, Int32, 5, comm)) },
		"ncclSend",
		[]int64{address, bigCount, 2, 5, comm, stream},
	},
	"recv": {
		func(l *Library) error { return queue(l.Recv(address, bigCount, Int8, 6, comm)) },
		"ncclRecv",
		[]int64{address, bigCount, 0, 6, comm, stream},
	},
	"creating a reduction": {
		func(l *Library) error {
			_, err := l.CreatePreMulSum(7, Float64, comm)
			return err
		},
		"ncclRedOpCreatePreMulSum",
		[]int64{anyAddress, anyAddress, 8, 1, comm},
	},
	"destroying a reduction": {
		func(l *Library) error { return l.DestroyReduceOp(5, comm) },
		"ncclRedOpDestroy",
		[]int64{5, comm},
	},
	"starting a group": {(*Library).GroupStart, "ncclGroupStart", []int64{}},
	"ending a group":   {(*Library).GroupEnd, "ncclGroupEnd", []int64{}},
	"aborting": {
		func(l *Library) error { return l.CommAbort(comm) }, "ncclCommAbort", []int64{comm},
	},
	"destroying": {
		func(l *Library) error { return l.CommDestroy(comm) }, "ncclCommDestroy", []int64{comm},
	},
	"deregistering a window": {
		func(l *Library) error { return l.WindowDeregister(comm, address) },
		"ncclCommWindowDeregister",
		[]int64{comm, address},
	},
	"suspending": {
		func(l *Library) error { return l.CommSuspend(comm) }, "ncclCommSuspend", []int64{comm, 1},
	},
	"resuming": {
		func(l *Library) error { return l.CommResume(comm) }, "ncclCommResume", []int64{comm},
	},
	"querying errors": {
		func(l *Library) error { return l.AsyncError(comm) },
		"ncclCommGetAsyncError",
		[]int64{comm, anyAddress},
	},
}

func TestMethodsPassAllArguments(t *testing.T) {
	library, recorder := load(t, "22907", declarations+newerDeclarations)
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			recorder.Reset()
			if err := c.call(library); err != nil {
				t.Fatal(err)
			}

			got := recorder.LastCall()
			same := slices.EqualFunc(got.Args, c.args, func(got, want int64) bool {
				return got == want || want == anyAddress && got != 0
			})
			if got.Name != c.name || !same {
				t.Errorf("called %s%#x, want %s%#x", got.Name, got.Args, c.name, c.args)
			}

			recorder.SetResult(5)
			var typed *Error
			if err := c.call(library); !errors.As(err, &typed) || typed.Call != c.name {
				t.Errorf("got error %v, want one from %s", err, c.name)
			}
		})
	}
}

func TestAllFunctionsAreTested(t *testing.T) {
	tested := strings.Fields("ncclGetVersion ncclGetErrorString ncclGetLastError ncclGetUniqueId " +
		"ncclCommInitRankScalable ncclCommCount ncclCommCuDevice ncclCommUserRank " +
		"ncclCommWindowRegister")
	for _, c := range calls {
		tested = append(tested, c.name)
	}

	for _, f := range table {
		if !slices.Contains(tested, f.name) {
			t.Errorf("no test calls %s", f.name)
		}
	}
}

func TestLibraryReportsItsVersion(t *testing.T) {
	library, _ := load(t, "22809", declarations+newerDeclarations)
	if code, text := library.Version(); code != 22809 || text != "2.28.9" {
		t.Errorf("Version() = %d, %s; want 22809, 2.28.9", code, text)
	}

	if filepath.Base(library.Path()) != "libnccl_recorder.so" || library.Origin() != "the test" {
		t.Errorf("Path() = %s, Origin() = %s; want libnccl_recorder.so, the test",
			library.Path(), library.Origin())
	}
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	if !poolKeepsItems {
		t.Skip("sync.Pool drops items under the race detector")
	}

	library, recorder := load(t, "22907", declarations+newerDeclarations)
	recorder.Reset()
	for _, name := range []string{
		"all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send", "recv",
		"reduce, with its last two arguments on the stack", "starting a group", "ending a group",
		"querying errors", "creating a reduction", "destroying a reduction",
	} {
		t.Run(name, func(t *testing.T) {
			call := calls[name].call
			if n := testing.AllocsPerRun(1000, func() { _ = call(library) }); n != 0 {
				t.Errorf("got %v allocations per call, want 0", n)
			}
		})
	}
}
