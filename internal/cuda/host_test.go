package cuda

import "testing"

func TestHostFuncRuns(t *testing.T) {
	driver, recorder := load(t, declarations)
	hostCallback, _ := driver.library.Find("run_host")
	for name, c := range map[string]struct {
		make func(func()) HostFunc
		want int
	}{
		"repeatedly": {NewHostFunc, 3},
		"once":       {NewHostFuncOnce, 1},
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			work := c.make(func() { runs++ })
			if err := driver.LaunchHostFunc(stream, work); err != nil {
				t.Fatal(err)
			}

			call := recorder.LastCall()
			if call.Name != "cuLaunchHostFunc" || call.Args[0] != int64(stream) {
				t.Fatalf("called %s%#x, want cuLaunchHostFunc on stream %#x", call.Name, call.Args, stream)
			}

			for range 3 {
				hostCallback.Call(uintptr(call.Args[1]), uintptr(call.Args[2]))
			}

			if runs != c.want {
				t.Errorf("the function ran %d times, want %d", runs, c.want)
			}

			work.Release()
			hostCallback.Call(uintptr(call.Args[1]), uintptr(call.Args[2]))
			if runs != c.want || len(hostFuncs.work) != 0 {
				t.Errorf("after Release, the function has run %d times and %d functions remain; want %d, 0",
					runs, len(hostFuncs.work), c.want)
			}
		})
	}
}
