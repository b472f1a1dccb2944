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

// recorder adds calls of a group to foreign graphs: CUDA graphs that another library, such as
// PyTorch, captures and replays. Callers must hold the locks of the group and the stream.
type recorder struct {
	gpu               *gpu.GPU
	cfg               *driver.GroupConfig
	plane             control.Plane // connects the ranks outside NCCL
	comparisonEnabled *atomic.Bool  // ranks compare their calls
	history           *history
	direct            *directPath // runs symmem's own kernels
	busy              *stream.BusyStreams
	faults            *faults
	comparer          *comparer

	wasCaptured atomic.Bool  // replays can start at any time
	graphHolds  memory.Holds // keep the objects that foreign graphs use

	capturedWindowKernels bool // a foreign graph has NCCL kernels that access registered windows
	capturedPlainKernels  bool // a foreign graph has other NCCL kernels

	// recordings number the calls of each of the latest captures.
	recordings       direct.Recordings
	currentRecording *direct.Recording // of the call being recorded
}

// markCaptured prepares for the capture of a call. If a kernel has reported a fault, it makes the
// group fail and returns the cause.
func (r *recorder) markCaptured() error {
	isFirst := !r.wasCaptured.Swap(true)
	if isFirst {
		r.busy.WakeWatcher() // from now on, it checks for faults periodically
	}

	return r.faults.checkKernels()
}

// findRecording returns the recording of the capture on stream s. The first call of a capture
// begins the recording.
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
		// Later captures have evicted the recording of this one.
		return nil, fmt.Errorf("recording a collective: group %s was recorded in %d other captures "+
			"since its last call in this one: %w", r.cfg.Name(), direct.MaxOpenRecordings,
			driver.ErrUnsupported)
	}

	return r.recordings.GetOrBegin(capture.ID), nil
}

// compare compares a call across ranks, unless symmem's own kernels will do so in each replay.
func (r *recorder) compare(call *driver.Call, kernelsWillCompare bool) error {
	if !r.comparisonEnabled.Load() {
		return nil
	}

	if kernelsWillCompare && r.direct.announcements != nil {
		return nil
	}

	// The stream is not marked as busy, because a capturing stream cannot be queried.
	ticket := r.plane.Submit()
	r.history.recordComparison(ticket)
	return r.comparer.compareOverPlane(call, ticket)
}

// holdUsedObjects keeps the objects of a recorded call until its graph is destroyed.
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
