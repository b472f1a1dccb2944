package symmem

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/tuning"
)

// PathChoice selects how the path of collectives is chosen.
type PathChoice int

// The path choices.
const (
	// PathDefault takes the value of SYMMEM_PATH, or else PathAuto.
	PathDefault PathChoice = iota
	// PathAuto leaves it to the tuning table.
	PathAuto
	// PathPlain takes the plain path always.
	PathPlain
	// PathWindow takes the window path wherever it can be taken, else the plain one.
	PathWindow
	// PathDirect takes the direct path wherever it can be taken, else what PathAuto takes where
	// there is no direct path.
	PathDirect
)

var pathNames = []string{"default", "auto", "plain", "window", "direct"}

// String returns the choice's name.
func (c PathChoice) String() string { return nameOf(c, pathNames, "PathChoice") }

// ParsePathChoice reads a name as String writes it.
func ParsePathChoice(name string) (PathChoice, error) {
	return parseName[PathChoice](name, pathNames, "path")
}

// reason is the reason for a path. Only String formats it, so it costs nothing to make.
type reason struct {
	where string         // where the buffers lie
	text  string         // the rest, or what links it to the table's
	table *tuning.Reason // if the table decided
	// direct is why a call does not go direct that was asked to, or could.
	direct *reason
}

// String is the reason as a sentence.
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
	ranks  int           // number of ranks
	tuning *tuning.Table // for a group of this shape
	shape  tuning.Shape
	choice atomic.Int32 // a PathChoice
}

// useWindows creates the windows of the backend's library if calls may take the window path. It is
// collective, and depends only on the settings that the ranks agreed on and on SetPath.
func (r *router) useWindows(ctx context.Context) error {
	lazy, ok := r.comm.(driver.LazyWindows)
	if !ok || !r.takesWindows() {
		return nil
	}
	return lazy.UseWindows(ctx)
}

func (r *router) takesWindows() bool {
	switch PathChoice(r.choice.Load()) {
	case PathWindow:
		return true
	case PathPlain:
		return false
	default:
		barrier := r.comm.Offer(driver.Call{Operation: driver.Barrier})
		return r.tuning.TakesWindows(r.shape, barrier.Refusal(driver.PathDirect) == nil)
	}
}

// route lets the backend resolve a call, chooses its path and sets it in the call. It takes the
// direct path if the backend supports that for the call and it is preferred; else the window path
// if the call names windows, the backend supports it, and it is preferred; else the plain path. why
// is the reason for the path, and where describes the buffers in it. If no path is left, route
// returns an error.
//
// It goes by the choice of the call or else of the group, and depends only on the call, on the
// terms that ranks connected on, and on SetPath, so all ranks choose the same path. Whether a call
// works in place does not differ between ranks if its buffers lie at the same places: a part at the
// same place on all ranks is in place on at most one, and check refuses the overlap on the others.
// For buffers outside windows it does not matter.
func (r *router) route(
	choice PathChoice, call *driver.Call, where string,
) (offer driver.Offer, why reason, err error) {
	who := "the call asks for"
	if choice <= PathAuto {
		choice, who = PathChoice(r.choice.Load()), "the group is set to"
	}
	offer = r.comm.Offer(*call)
	if !call.Operation.Takes(driver.PathPlain) {
		call.Path = driver.PathDirect
		return offer, reason{text: "the operation goes direct or not at all"}, only(offer, choice, who)
	}
	direct, decided := r.direct(choice, call, offer, who)
	if direct {
		call.Path, decided.where = driver.PathDirect, where
		return offer, *decided, nil
	}
	call.Path = driver.PathPlain
	if call.SendWindow != nil && call.RecvWindow != nil {
		call.Path, why = r.windowed(choice, call, offer, who)
	}
	if call.Path == driver.PathPlain {
		err = refusal(offer, decided)
	}
	why.where, why.direct = where, decided
	return offer, why, err
}

// refusal returns the reason why a call cannot take the plain path, the last one left, or nil.
func refusal(offer driver.Offer, direct *reason) error {
	err := offer.Refusal(driver.PathPlain)
	if err != nil && direct != nil {
		err = fmt.Errorf("%w; not direct: %v", err, direct)
	}
	return err
}

// only returns the reason why an operation that has only the direct path cannot take it, or nil.
func only(offer driver.Offer, choice PathChoice, who string) error {
	if choice == PathPlain || choice == PathWindow {
		return fmt.Errorf("%s the %v path: %w", who, choice, ErrUnsupported)
	}
	return offer.Refusal(driver.PathDirect)
}

// direct reports whether a call takes the direct path, with the reason. The reason for another path
// is nil unless the direct path was requested or possible. The choice or the operation may rule it
// out, and calls that move no data have no direct path.
//
// A barrier goes wherever it can: it has no size for a table to look at, and a kernel of our own
// only waits for its peers, where NCCL reduces bytes. The same holds for minimum and maximum of
// floats, since NCCL drops NaNs.
func (r *router) direct(
	choice PathChoice, call *driver.Call, offer driver.Offer, who string,
) (bool, *reason) {
	if choice == PathPlain || choice == PathWindow || !call.Operation.Takes(driver.PathDirect) ||
		call.Count == 0 && call.Operation != driver.Barrier {
		return false, nil
	}
	refusal := offer.Refusal(driver.PathDirect)
	wanted, why := true, &reason{text: "and " + who + " the direct path"}
	switch {
	case choice == PathDirect:
	case call.Operation == driver.Barrier:
		why.text = "and barriers go direct wherever they can"
		if refusal != nil {
			return false, nil
		}
	case call.ComparesFloats():
		why.text = "and minimum and maximum of floats go direct wherever they can, where a NaN wins"
		if refusal != nil {
			return false, nil
		}
	case offer.Refusal(driver.PathPlain) != nil:
		why.text = "and no other path can take the call"
	default:
		var table tuning.Reason
		wanted, table = r.tuning.ChooseDirect(
			call.Operation.String(), bytesOf(call, r.ranks), call.SendWindow != nil, r.shape)
		why = &reason{text: "and ", table: &table}
	}
	switch {
	case wanted && refusal == nil:
		return true, why
	case wanted:
		return false, &reason{text: refusal.Error()}
	case refusal == nil:
		why.text = ""
		return false, why
	}
	return false, nil
}

// bytesOf returns the size of a call's larger buffer, by which the tuning table chooses.
func bytesOf(call *driver.Call, ranks int) int64 {
	send, recv := call.Spans(ranks)
	return max(send, recv)
}

// windowed chooses between the plain and the window path for a call whose buffers lie in windows.
func (r *router) windowed(
	choice PathChoice, call *driver.Call, offer driver.Offer, who string,
) (driver.Path, reason) {
	if choice == PathPlain {
		return driver.PathPlain, reason{text: "but " + who + " the plain path"}
	}
	if err := offer.Refusal(driver.PathWindow); err != nil {
		return driver.PathPlain, reason{text: "but they cannot take the window path: " + err.Error()}
	}
	if choice == PathWindow {
		return driver.PathWindow, reason{text: "and " + who + " the window path"}
	}
	path, why := r.tuning.Choose(call.Operation.String(), bytesOf(call, r.ranks), r.shape)
	if path == tuning.Window {
		return driver.PathWindow, reason{text: "and ", table: &why}
	}
	return driver.PathPlain, reason{text: "but ", table: &why}
}
