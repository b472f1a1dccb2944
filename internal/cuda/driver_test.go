package cuda

import "testing"

func TestHotCallsDoNotAllocate(t *testing.T) {
	if !pooled {
		t.Skip("under the race detector sync.Pool drops what it holds")
	}
	driver, recorder := load(t, declarations)
	recorder.Reset()
	params := new(Params)
	for name, call := range map[string]func(){
		"copy":          func() { _ = driver.MemcpyAsync(address, other, big, stream) },
		"fill":          func() { _ = driver.MemsetD8Async(address, 1, big, stream) },
		"stream query":  func() { _, _ = driver.StreamQuery(stream) },
		"event query":   func() { _, _ = driver.EventQuery(event) },
		"event record":  func() { _ = driver.EventRecord(event, stream) },
		"wait":          func() { _ = driver.StreamWaitEvent(stream, event) },
		"capture state": func() { _, _ = driver.CaptureStatus(stream) },
		"graph launch":  func() { _ = driver.GraphLaunch(1, stream) },
		"context":       func() { _ = driver.SetCurrent(1) },
		"exchange mode": func() { _, _ = driver.ThreadExchangeCaptureMode(CaptureRelaxed) },
		"kernel": func() {
			params.Reset()
			params.Address(address)
			_ = driver.LaunchKernel(1, Dim{X: 1}, Dim{X: 1}, 0, stream, params)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if n := testing.AllocsPerRun(1000, call); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
