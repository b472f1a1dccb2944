package nccl

import (
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
	"symmem/internal/cuda"
)

// Another library, such as PyTorch, can capture work of its streams in a CUDA graph, and replay the
// graph many times. This is a foreign graph. For example, the program calls AllReduce twice during
// such a capture. The recorder gives these calls the positions 1 and 2 in the capture, and keeps
// the memory that they use until the graph is destroyed. When the graph is replayed, the backend
// does not notice it.
//
// A window kernel is an NCCL kernel that accesses windows (memory registered with NCCL). Any other
// NCCL kernel is plain.

// recorder adds calls of a group to foreign graphs. Callers must hold the locks of the group and
// the stream.
type recorder struct {
	gpu               *gpu.GPU
	cfg               *driver.GroupConfig
	plane             control.Plane // connects the ranks outside NCCL
	comparisonEnabled *atomic.Bool  // set if ranks compare their calls
	history           *history
	direct            *directPath // for symmem's own kernels
	busy              *stream.BusyStreams
	faults            *faults
	comparer          *comparer

	// wasCaptured is set before another library captures the first call. From then on, the library
	// can replay calls at any time.
	wasCaptured atomic.Bool
	graphHolds  memory.Holds // keep the objects that foreign graphs use

	capturedWindowKernels bool // set once a foreign graph contains a window kernel
	capturedPlainKernels  bool // set once a foreign graph contains a plain kernel

	// A recording numbers the calls of one capture. recordings has those of the latest captures.
	recordings       direct.Recordings
	currentRecording *direct.Recording // of the call being recorded
}

// markCaptured prepares for the capture of a call. If one of symmem's own kernels has reported a
// fault, it makes the group fail, and returns the cause of the failure.
func (r *recorder) markCaptured() error {
	isFirst := !r.wasCaptured.Swap(true)
	if isFirst {
		r.busy.WakeWatcher() // which checks for faults at intervals from now on
	}

	return r.faults.checkKernels()
}

// findRecording returns the recording of the capture on stream s. It begins one if the capture has
// no calls of the group. It returns an error if s is not capturing.
func (r *recorder) findRecording(s *stream.Stream) (*direct.Recording, error) {
	var capture cuda.Capture
	err := r.gpu.With(func(gpu *cuda.Driver) (err error) {
		capture, err = gpu.CaptureInfo(s.CUDA)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("recording a collective: %w", err)
	case capture.Status == cuda.CaptureNone:
		return nil, fmt.Errorf("recording a collective: %w", driver.ErrNotCapturing)
	case capture.Status == cuda.CaptureInvalidated:
		return nil, fmt.Errorf("recording a collective: the capture was invalidated, perhaps by a CUDA "+
			"call of another thread that is not allowed in global mode: capture in thread-local mode: %w",
			cuda.ErrCaptureInvalidated)
	case !r.recordings.IsKnown(capture.ID) && r.graphHolds.HasCapture(capture.ID):
		// The capture has calls of the group, but recordings has replaced its recording.
		return nil, fmt.Errorf("recording a collective: group %s was recorded in %d other captures "+
			"since its last call in this one: %w", r.cfg.Name(), direct.MaxOpenRecordings,
			driver.ErrUnsupported)
	}

	return r.recordings.GetOrBegin(capture.ID), nil
}

// compare compares a call across ranks while the call is recorded. It does nothing if calls are not
// compared, or if symmem's own kernels will compare the call in each replay.
func (r *recorder) compare(call *driver.Call, kernelsWillCompare bool) error {
	if !r.comparisonEnabled.Load() {
		return nil
	}

	if kernelsWillCompare && r.direct.announcements != nil {
		return nil
	}

	// Unlike a launch, do not mark the stream as busy, because a capturing stream cannot be queried.
	ticket := r.plane.Submit() // number of this comparison among the group's collectives
	r.history.recordComparison(ticket)
	return r.comparer.compareOverPlane(call, ticket)
}

// holdUsedObjects keeps the objects that a recorded call uses until the graph that stream s
// captures is destroyed. It also notes whether the call has window kernels or plain kernels.
func (r *recorder) holdUsedObjects(
	s *stream.Stream, used []*memory.UseCount, path driver.Path, usesNCCL bool,
) error {
	hold, err := r.graphHolds.GetOrBegin(s.CUDA)
	if hold == nil || err != nil { // without an error, s is not capturing
		return err
	}

	hold.AddUses(used)
	if !usesNCCL {
		return nil
	}

	if path == driver.PathWindow {
		r.capturedWindowKernels = true
		return nil
	}

	hold.AddPlainUses(used)
	r.capturedPlainKernels = true
	return nil
}
