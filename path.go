package symmem

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/tuning"
)

// PathChoice determines the path of collectives: the way in which they run. On the plain path, any
// memory can be used. On the window path, NCCL uses memory that is registered on all ranks. On the
// direct path, symmem's kernels use such memory.
type PathChoice int

// The path choices.
const (
	// PathDefault uses the choice in SYMMEM_PATH, or PathAuto if that is not set.
	PathDefault PathChoice = iota
	// PathAuto lets the tuning table choose.
	PathAuto
	// PathPlain selects the plain path.
	PathPlain
	// PathWindow selects the window path if it is possible, and the plain path otherwise.
	PathWindow
	// PathDirect selects the direct path if it is possible, and otherwise the best other path.
	PathDirect
	// PathTwoLevel selects the two-level path if it is possible, on several machines, and otherwise
	// the path that PathAuto selects.
	PathTwoLevel
)

var pathNames = []string{"default", "auto", "plain", "window", "direct", "two-level"}

// String returns the choice's name.
func (c PathChoice) String() string { return nameOf(c, pathNames, "PathChoice") }

// ParsePathChoice returns the choice with a name that String returns.
func ParsePathChoice(name string) (PathChoice, error) {
	return parseName[PathChoice](name, pathNames, "path")
}

// reason explains the path of a call to the user. An example of its text is "the buffers lie in
// windows of the group, and the call asks for the window path".
type reason struct {
	where string         // whether the buffers lie in windows
	text  string         // rest of the text, before the table's reason
	table *tuning.Reason // the tuning table's reason, or nil if the table did not decide
	// direct explains why the call does not take the direct path. It is nil if the call takes that
	// path, or if the path is neither requested nor possible.
	direct *reason
}

func (r reason) String() string {
	s := r.where
	if r.text != "" && s != "" {
		s += ", "
	}

	s += r.text
	if r.table != nil {
		s += r.table.String()
	}

	if r.direct != nil {
		s += "; not direct: " + r.direct.String()
	}

	return s
}

// router chooses the paths of a group's calls.
type router struct {
	comm   driver.Communicator
	ranks  int           // number of the group's ranks
	tuning *tuning.Table // the same on all ranks
	shape  tuning.Shape  // numbers of ranks and machines, on which the table's choice depends
	choice atomic.Int32  // the group's PathChoice, never PathDefault
}

// prepare prepares the communicator for the paths that the group's calls can take. All ranks must
// call it.
func (r *router) prepare(ctx context.Context) error {
	levels, hasTwoLevels := r.comm.(driver.TwoLevels)
	if hasTwoLevels && r.canTakeTwoLevels() {
		if err := levels.UseTwoLevels(ctx); err != nil {
			return err
		}
	}

	return r.useWindows(ctx)
}

// canTakeTwoLevels reports whether calls can take the two-level path, as far as the group's choice
// and the tuning table decide.
func (r *router) canTakeTwoLevels() bool {
	switch PathChoice(r.choice.Load()) {
	case PathTwoLevel:
		return true
	case PathPlain, PathWindow:
		return false
	default:
		return r.tuning.CanUseTwoLevel(r.shape)
	}
}

// useWindows prepares the communicator for the window path if the group's calls can take it.
func (r *router) useWindows(ctx context.Context) error {
	lazy, ok := r.comm.(driver.LazyWindows)
	if !ok || !r.canTakeWindows() {
		return nil
	}

	return lazy.UseWindows(ctx)
}

// canTakeWindows reports whether calls can take the window path, as far as the group's choice and
// the tuning table decide.
func (r *router) canTakeWindows() bool {
	switch PathChoice(r.choice.Load()) {
	case PathWindow:
		return true
	case PathPlain:
		return false
	default:
		barrier := r.comm.Offer(driver.Call{Operation: driver.Barrier})
		hasDirect := barrier.Refusal(driver.PathDirect) == nil
		return r.tuning.CanUseWindows(r.shape, hasDirect)
	}
}

// route stores the path of a call in call.Path, and returns the backend's offer for the call and
// the reason for the path. The offer lists which paths the backend supports for the call. Of the
// direct, two-level, window and plain path, route chooses the first that the backend supports and
// that the choice or the tuning table prefers. The window path requires that the buffers lie in
// windows. where says whether they do; it is only for the reason.
//
// The result is the same on all ranks, because it depends only on the call, on agreed settings and
// on SetPath.
func (r *router) route(
	choice PathChoice, call *driver.Call, where string,
) (offer driver.Offer, why reason, err error) {
	requester := "the call asks for"
	if choice <= PathAuto { // the call does not choose
		choice = PathChoice(r.choice.Load())
		requester = "the group is set to"
	}

	offer = r.comm.Offer(*call)
	takesDirect, directReason := r.decideDirect(choice, call, offer, requester)
	if takesDirect {
		call.Path = driver.PathDirect
		directReason.where = where
		return offer, *directReason, nil
	}

	if r.decideTwoLevel(choice, call, offer) {
		call.Path = driver.PathTwoLevel
		why.where = where
		if choice == PathTwoLevel {
			why.text = "and " + requester + " the two-level path"
		} else {
			_, tableReason := r.ruleOf(call)
			why.text, why.table = "and ", &tableReason
		}

		return offer, why, nil
	}

	call.Path = driver.PathPlain
	if call.SendWindow != nil && call.RecvWindow != nil {
		call.Path, why = r.chooseWindow(choice, call, offer, requester)
	}

	if call.Path == driver.PathPlain {
		err = refusal(offer, directReason)
	}

	why.where = where
	why.direct = directReason // why not direct
	return offer, why, err
}

// refusal returns an error if the plain path, the last choice, cannot take the call. direct
// explains why the call does not take the direct path, or is nil.
func refusal(offer driver.Offer, direct *reason) error {
	err := offer.Refusal(driver.PathPlain)
	if err != nil && direct != nil {
		err = fmt.Errorf("%w; not direct: %v", err, direct)
	}

	return err
}

// decideDirect decides whether a call takes the direct path, and returns why or why not. The reason
// is nil if the path was neither requested nor possible. Two kinds of calls take the direct path
// whenever they can: barriers, because NCCL's barrier also reduces data, and the minimum and
// maximum of floats, because NCCL ignores NaNs.
func (r *router) decideDirect(
	choice PathChoice, call *driver.Call, offer driver.Offer, requester string,
) (takesDirect bool, why *reason) {
	isOtherChoice := choice == PathPlain || choice == PathWindow
	if isOtherChoice || !call.Operation.SupportsPath(driver.PathDirect) || r.isEmpty(call) {
		return false, nil
	}

	directErr := offer.Refusal(driver.PathDirect)
	isPossible := directErr == nil
	isWanted := true
	switch {
	case choice == PathDirect:
		why = &reason{text: "and " + requester + " the direct path"}
	case call.Operation == driver.Barrier:
		if !isPossible {
			return false, nil
		}

		why = &reason{text: "and barriers take the direct path whenever they can"}
	case call.IsFloatMinOrMax():
		if !isPossible {
			return false, nil
		}

		why = &reason{text: "and minimum and maximum of floats take the direct path whenever " +
			"they can, which keeps NaNs"}
	case offer.Refusal(driver.PathPlain) != nil:
		why = &reason{text: "and no other path can take the call"}
	default:
		path, tableReason := r.ruleOf(call)
		isWanted = path == tuning.Direct
		why = &reason{text: "and ", table: &tableReason}
	}

	switch {
	case isWanted && isPossible:
		return true, why
	case isWanted:
		return false, &reason{text: directErr.Error()}
	case isPossible:
		why.text = "" // only the table's reason remains
		return false, why
	default:
		return false, nil
	}
}

// isEmpty reports whether a call of an operation that transfers data transfers none.
func (r *router) isEmpty(call *driver.Call) bool {
	hasOtherWork := call.Operation == driver.Barrier || call.Norm != nil || call.Route != nil
	return !hasOtherWork && bytesOf(call, r.ranks) == 0
}

// ruleOf returns the tuning table's choice between the direct, two-level and other paths.
func (r *router) ruleOf(call *driver.Call) (tuning.Path, tuning.Reason) {
	hasWindow := call.SendWindow != nil || call.RecvWindow != nil
	return r.tuning.ChooseDirect(
		ruleName(call.Operation), bytesOf(call, r.ranks), hasWindow, r.shape)
}

// decideTwoLevel reports whether a call takes the two-level path. It is called if the call does not
// take the direct path.
func (r *router) decideTwoLevel(choice PathChoice, call *driver.Call, offer driver.Offer) bool {
	isOtherChoice := choice == PathPlain || choice == PathWindow
	if isOtherChoice || r.shape.Machines <= 1 {
		return false
	}

	if !call.Operation.SupportsPath(driver.PathTwoLevel) {
		return false
	}

	if choice != PathTwoLevel {
		tablePath, _ := r.ruleOf(call)
		if tablePath != tuning.TwoLevel {
			return false
		}
	}

	return offer.Refusal(driver.PathTwoLevel) == nil
}

// ruleName returns the name of the operation whose rules in the tuning table apply to o.
func ruleName(o driver.Operation) string {
	switch o {
	case driver.AllGatherV:
		o = driver.AllGather
	case driver.ReduceScatterV:
		o = driver.ReduceScatter
	default:
		o = o.WithoutNorm()
	}

	return o.String()
}

// bytesOf returns the size of the larger buffer of a call, which is the same on every rank.
func bytesOf(call *driver.Call, ranks int) int64 {
	if call.Operation.SplitsOneBuffer() {
		return call.Splits.Total(call.Operation) * int64(call.DataType.Size())
	}

	send, recv := call.Spans(ranks, call.Root)
	return max(send, recv)
}

// chooseWindow chooses between the window path and the plain path for a call whose buffers lie in
// windows.
func (r *router) chooseWindow(
	choice PathChoice, call *driver.Call, offer driver.Offer, requester string,
) (driver.Path, reason) {
	if choice == PathPlain {
		return driver.PathPlain, reason{text: "but " + requester + " the plain path"}
	}

	if err := offer.Refusal(driver.PathWindow); err != nil {
		return driver.PathPlain, reason{text: "but they cannot take the window path: " + err.Error()}
	}

	if choice == PathWindow {
		return driver.PathWindow, reason{text: "and " + requester + " the window path"}
	}

	path, why := r.tuning.Choose(ruleName(call.Operation), bytesOf(call, r.ranks), r.shape)
	if path == tuning.Window {
		return driver.PathWindow, reason{text: "and ", table: &why}
	}

	return driver.PathPlain, reason{text: "but ", table: &why}
}
