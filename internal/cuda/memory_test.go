package cuda

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"unsafe"

	"symmem/internal/dl"
	"symmem/internal/dl/dltest"
)

// Tests in this file use load: it compiles a C library that stands in for libcuda, and opens it.
// The library's functions, which have the declarations of cuda.h, only record their arguments.
// SetOutput sets bytes that they write to the memory of an argument, whose index counts from 0.
// RecordMemory selects an argument whose memory is recorded. address, big and stream are arbitrary
// values.

// The structures must have the same layout in Go and in C. The C function layout_of_prop returns
// sizes and offsets by index, in the order of the table below.
func TestAllocationPropLayout(t *testing.T) {
	driver, _ := load(t, declarations)
	layout, ok := driver.library.Find("layout_of_prop")
	if !ok {
		t.Fatal("the library has no layout_of_prop")
	}

	var p AllocationProp
	var a accessGrant
	for i, row := range []struct {
		name string
		want uintptr
	}{
		{"size of AllocationProp", unsafe.Sizeof(p)},
		{"offset of Type", unsafe.Offsetof(p.Type)},
		{"offset of RequestedHandles", unsafe.Offsetof(p.RequestedHandles)},
		{"offset of Location", unsafe.Offsetof(p.Location)},
		{"offset of win32Metadata", unsafe.Offsetof(p.win32Metadata)},
		{"offset of CompressionType", unsafe.Offsetof(p.CompressionType)},
		{"offset of GPUDirectRDMACapable", unsafe.Offsetof(p.GPUDirectRDMACapable)},
		{"offset of Usage", unsafe.Offsetof(p.Usage)},
		{"size of accessGrant", unsafe.Sizeof(a)},
		{"offset of flags", unsafe.Offsetof(a.flags)},
	} {
		if got := layout.Call(uintptr(i)); got != row.want {
			t.Errorf("%s is %d in C, want %d, as in Go", row.name, got, row.want)
		}
	}
}

// checkCall fails the test if the last call is not one of the C function with the given name. It
// also fails if an argument is not the expected one. want contains these by index from 0.
func checkCall(t *testing.T, recorder *dltest.Recorder, name string, want map[int]int64) {
	t.Helper()
	call := recorder.LastCall()
	if call.Name != name {
		t.Fatalf("called %q, want %q", call.Name, name)
	}

	for i, arg := range want {
		if call.Args[i] != arg {
			t.Errorf("%s: argument %d is %#x, want %#x", name, i, call.Args[i], arg)
		}
	}
}

// checkMemory fails the test if the argument with the given index did not point to the bytes in
// want. RecordMemory must have selected the argument.
func checkMemory(t *testing.T, recorder *dltest.Recorder, index int, want []byte) {
	t.Helper()
	call := recorder.LastCall()
	if got := call.Memory[index][:len(want)]; !slices.Equal(got, want) {
		t.Errorf("%s: argument %d points to %v, want %v", call.Name, index, got, want)
	}
}

// Granularity and Create pass a pointer to the properties to C functions.
func TestAllocationPropReachesDriver(t *testing.T) {
	driver, recorder := load(t, declarations)
	const withRDMA = true
	prop := PinnedMemory(device(driver, 3), HandlePosixFD|HandleFabric, withRDMA)
	wantProp := slices.Concat(
		word32(1),            // type: pinned
		word32(1+8),          // handle types: a file descriptor or a fabric handle
		word32(1), word32(3), // location: device 3
		words64(0),                     // used only on Windows
		[]byte{0, 1, 0, 0, 0, 0, 0, 0}, // no compression, RDMA, no usage, 4 reserved bytes
	)

	recorder.RecordMemory(1, len(wantProp))
	recorder.SetOutput(0, words64(2<<20))
	size, err := driver.Granularity(prop, true)
	if size != 2<<20 || err != nil {
		t.Errorf("Granularity(prop, true) = %d, %v; want %d, nil", size, err, 2<<20)
	}

	const optionIndex, minimum, recommended = 2, 0, 1
	checkCall(t, recorder, "cuMemGetAllocationGranularity", map[int]int64{optionIndex: recommended})
	checkMemory(t, recorder, 1, wantProp)
	if _, err := driver.Granularity(prop, false); err != nil {
		t.Errorf("Granularity(prop, false) returned error %v, want nil", err)
	}

	checkCall(t, recorder, "cuMemGetAllocationGranularity", map[int]int64{optionIndex: minimum})

	recorder.Reset()
	recorder.RecordMemory(2, len(wantProp))
	recorder.SetOutput(0, words64(1<<40))
	handle, err := driver.Create(big, prop)
	if handle != 1<<40 || err != nil {
		t.Errorf("Create = %#x, %v; want %#x, nil", handle, err, 1<<40)
	}

	const bytesIndex, flagsIndex = 1, 3
	checkCall(t, recorder, "cuMemCreate", map[int]int64{bytesIndex: big, flagsIndex: 0})
	checkMemory(t, recorder, 2, wantProp)
}

func TestPinnedMemoryWithoutRDMA(t *testing.T) {
	const withRDMA = false
	if p := PinnedMemory(Device{}, HandlePosixFD, withRDMA); p.GPUDirectRDMACapable != 0 {
		t.Errorf("GPUDirectRDMACapable = %d, want 0", p.GPUDirectRDMACapable)
	}
}

func TestSetAccessPassesEachDevice(t *testing.T) {
	driver, recorder := load(t, declarations)
	const deviceType, readAndWrite = 1, 3 // numbers of cuda.h
	wantGrants := slices.Concat(
		word32(deviceType), word32(3), word32(readAndWrite),
		word32(deviceType), word32(5), word32(readAndWrite),
	)
	recorder.RecordMemory(2, len(wantGrants))
	if err := driver.SetAccess(address, big, device(driver, 3), device(driver, 5)); err != nil {
		t.Errorf("SetAccess = %v, want nil", err)
	}

	const addressIndex, bytesIndex, countIndex = 0, 1, 3
	checkCall(t, recorder, "cuMemSetAccess", map[int]int64{
		addressIndex: int64(address), bytesIndex: big, countIndex: 2,
	})
	checkMemory(t, recorder, 2, wantGrants)

	recorder.Reset()
	if err := driver.SetAccess(address, big); err != nil {
		t.Errorf("SetAccess without devices = %v, want nil", err)
	}

	if name := recorder.LastCall().Name; name != "" {
		t.Errorf("SetAccess without devices called %q, want no call", name)
	}
}

// A fabric handle is exported to memory, and imported from memory, that an argument points to.
func TestFabricHandlesPassUnchanged(t *testing.T) {
	driver, recorder := load(t, declarations)
	var fabric FabricHandle
	for i := range fabric {
		fabric[i] = byte(i)
	}

	const typeIndex = 2  // the argument with the type of handle, in both functions
	const fabricType = 8 // its number in cuda.h

	recorder.SetOutput(0, fabric[:])
	exported, err := driver.ExportFabric(Handle(address))
	if exported != fabric || err != nil {
		t.Errorf("ExportFabric = %v, %v; want %v, nil", exported, err, fabric)
	}

	checkCall(t, recorder, "cuMemExportToShareableHandle", map[int]int64{typeIndex: fabricType})

	recorder.Reset()
	recorder.RecordMemory(1, len(fabric))
	recorder.SetOutput(0, words64(1<<40))
	handle, err := driver.ImportFabric(fabric)
	if handle != 1<<40 || err != nil {
		t.Errorf("ImportFabric = %#x, %v; want %#x, nil", handle, err, 1<<40)
	}

	checkCall(t, recorder, "cuMemImportFromShareableHandle", map[int]int64{typeIndex: fabricType})
	checkMemory(t, recorder, 1, fabric[:])
}

// Results of CUDA functions, as numbers of cuda.h.
const (
	resultOutOfMemory    = 2
	resultNotReady       = 600
	resultIllegalAddress = 700
	resultUnknown        = 12345 // the library of these tests has no name for it
)

func TestErrorsAreTyped(t *testing.T) {
	driver, recorder := load(t, declarations)
	recorder.SetResult(resultOutOfMemory)
	_, err := driver.Create(big, AllocationProp{})
	if !errors.Is(err, ErrOutOfMemory) {
		t.Fatalf("Create = %v, want ErrOutOfMemory", err)
	}

	if errors.Is(err, ErrNotReady) {
		t.Fatalf("Create = %v, which is also ErrNotReady", err)
	}

	var callErr *Error
	if !errors.As(err, &callErr) {
		t.Fatalf("Create returned a %T, want an *Error", err)
	}

	want := Error{
		Call: "cuMemCreate", Code: ErrOutOfMemory, Name: "CUDA_ERROR_OUT_OF_MEMORY",
		Text: "out of memory",
	}
	if *callErr != want {
		t.Errorf("Create = %+v, want %+v", *callErr, want)
	}

	if want := "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"; err.Error() != want {
		t.Errorf("Error() = %q, want %q", err, want)
	}

	recorder.SetResult(resultUnknown)
	const wantUnknown = "cuMemUnmap: CUDA result 12345"
	if err := driver.Unmap(0, 0); err == nil || err.Error() != wantUnknown {
		t.Errorf("Unmap = %v, want %s", err, wantUnknown)
	}
}

func TestNotReadyIsNotAnError(t *testing.T) {
	driver, recorder := load(t, declarations)
	recorder.SetResult(resultNotReady)
	for name, query := range map[string]func() (bool, error){
		"stream": func() (bool, error) { return driver.StreamQuery(stream) },
		"event":  func() (bool, error) { return driver.EventQuery(event) },
	} {
		if done, err := query(); done || err != nil {
			t.Errorf("%s: got %v, %v; want false, nil", name, done, err)
		}
	}

	recorder.SetResult(resultIllegalAddress)
	if done, err := driver.EventQuery(event); done || !errors.Is(err, ErrIllegalAddress) {
		t.Errorf("EventQuery = %v, %v; want false, ErrIllegalAddress", done, err)
	}
}

// The launch of a kernel passes its arguments in one piece of memory. The fields must be where a C
// structure has them.
func TestKernelArgumentsHaveCLayout(t *testing.T) {
	p := ParamsOf(&struct {
		number  uint32
		pointer uintptr
		float   float32
		next    uint32
		long    uint64
	}{number: 0x11, pointer: address, float: 1.5, next: 0x22, long: 0x33})
	want := slices.Concat(
		word32(0x11), word32(0), // padding aligns the pointer
		words64(uint64(address)),
		word32(0x3fc0_0000), // 1.5
		word32(0x22),
		words64(0x33),
	)
	driver, recorder := load(t, declarations)
	// The last argument of cuLaunchKernel points to an array of options: names, each with a value,
	// and the end.
	const extraIndex, words = 10, 5
	recorder.RecordMemory(extraIndex, 8*words)
	launch := func() error {
		const function, blocks, threads, nullStream = 1, 1, 1, 0
		return driver.LaunchKernel(function, blocks, threads, nullStream, &p)
	}
	if err := launch(); err != nil {
		t.Fatal(err)
	}

	extra := recorder.LastCall().Memory[extraIndex]
	word := func(i int) uintptr { return uintptr(binary.NativeEndian.Uint64(extra[8*i:])) }
	gotNames := [3]uintptr{word(0), word(2), word(4)}
	wantNames := [3]uintptr{1, 2, 0} // in cuda.h: the arguments, their size, and the end
	if gotNames != wantNames {
		t.Fatalf("LaunchKernel passed launch options %v, want %v", gotNames, wantNames)
	}

	// The launch has returned this memory to the pool, but no other launch has reused it yet.
	paramsAddress, sizeAddress := word(1), word(3)
	if size := dl.Read[uint64](sizeAddress); size != uint64(len(want)) {
		t.Errorf("LaunchKernel passed size %d, want %d", size, len(want))
	}

	got := dl.Read[[40]byte](paramsAddress) // more than the arguments have
	if !slices.Equal(got[:len(want)], want) {
		t.Errorf("LaunchKernel passed arguments %v, want %v", got[:len(want)], want)
	}

	defer func() {
		if recover() == nil {
			t.Error("LaunchKernel with too many arguments did not panic")
		}
	}()
	p = ParamsOf(new([MaxParams/8 + 1]uint64))
	_ = launch() // must panic
}
