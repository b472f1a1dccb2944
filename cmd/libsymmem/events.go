package main

// #include "shim.h"
import "C"

//export goEventRecord
func goEventRecord(stream C.uint64_t, event *C.uint64_t) C.int {
	return store(event, "the event", func() (uint64, error) {
		return library.RecordEvent(uintptr(stream))
	})
}

//export goEventDone
func goEventDone(event C.uint64_t) C.int {
	return boolResult(func() bool { return library.IsEventDone(uint64(event)) })
}

//export goEventSynchronize
func goEventSynchronize(event C.uint64_t) C.int {
	return guard(func() error { return library.WaitForEvent(uint64(event)) })
}

//export goEventWait
func goEventWait(event C.uint64_t, timeoutMS C.int64_t) C.int {
	return guard(func() error { return library.WaitForEventUntil(uint64(event), int64(timeoutMS)) })
}

//export goEventClose
func goEventClose(event C.uint64_t) C.int {
	return guard(func() error { return library.CloseEvent(uint64(event)) })
}

//export goStreamWait
func goStreamWait(stream, event C.uint64_t) C.int {
	return guard(func() error { return library.StreamWait(uintptr(stream), uint64(event)) })
}
