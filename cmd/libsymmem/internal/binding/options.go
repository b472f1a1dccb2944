package binding

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"symmem"
)

// Options holds the options of symmem_open, which symmem.h documents.
type Options struct {
	Rank            int               `json:"rank"`
	Size            int               `json:"size"`
	LocalRank       int               `json:"local_rank"`
	LocalSize       int               `json:"local_size"`
	Device          *int              `json:"device"`
	Store           string            `json:"store"`
	Token           string            `json:"token"`
	Backend         string            `json:"backend"`
	Tuning          string            `json:"tuning"`
	Trace           string            `json:"trace"`
	Path            string            `json:"path"`
	Deterministic   string            `json:"deterministic"`
	Check           string            `json:"check"`
	CheckIntervalMS int64             `json:"check_interval_ms"`
	TimeoutMS       int64             `json:"timeout_ms"`
	WarnAfterMS     int64             `json:"warn_after_ms"`
	CallSites       *bool             `json:"callsites"`
	OrderedMessages bool              `json:"ordered_messages"`
	Scatter         uint64            `json:"scatter"`
	GoMaxProcs      int               `json:"gomaxprocs"`
	Pool            PoolOptions       `json:"pool"`
	Environment     map[string]string `json:"environment"`
}

// PoolOptions holds the options of one pool.
type PoolOptions struct {
	Capacity     int64  `json:"capacity"`
	FirstSegment int64  `json:"first_segment"`
	Placement    string `json:"placement"`
}

// decode decodes a JSON object and rejects unknown fields. An empty text leaves options unchanged.
func decode(text []byte, options any) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(options); err != nil {
		return fmt.Errorf("reading the options: %w: %w", err, symmem.ErrInvalid)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("reading the options: text after the JSON object: %w", symmem.ErrInvalid)
	}
	return nil
}

func (o *Options) runtimeOptions() (symmem.Options, error) {
	out := symmem.Options{
		Rank: o.Rank, Size: o.Size, LocalRank: o.LocalRank, LocalSize: o.LocalSize,
		Store: o.Store, Token: o.Token, Backend: o.Backend, Tuning: o.Tuning, Trace: o.Trace,
		Scatter:           o.Scatter,
		CheckInterval:     time.Duration(o.CheckIntervalMS) * time.Millisecond,
		Timeout:           time.Duration(o.TimeoutMS) * time.Millisecond,
		WarnAfter:         time.Duration(o.WarnAfterMS) * time.Millisecond,
		UnorderedMessages: !o.OrderedMessages,
	}
	if o.TimeoutMS < 0 || min(o.CheckIntervalMS, o.WarnAfterMS) < -maxMilliseconds ||
		max(o.TimeoutMS, o.CheckIntervalMS, o.WarnAfterMS) > maxMilliseconds {
		return out, fmt.Errorf("timeout_ms %d, check_interval_ms %d, warn_after_ms %d: the "+
			"maximum is %d, and a timeout cannot be negative: %w", o.TimeoutMS, o.CheckIntervalMS,
			o.WarnAfterMS, maxMilliseconds, symmem.ErrInvalid)
	}
	if o.Device != nil {
		if *o.Device < 0 {
			return out, fmt.Errorf("device %d: %w", *o.Device, symmem.ErrInvalid)
		}
		out.Device = symmem.DeviceNumber(*o.Device)
	}
	var err error
	if o.Path != "" {
		if out.Path, err = symmem.ParsePathChoice(o.Path); err != nil {
			return out, err
		}
	}
	if o.Deterministic != "" {
		if out.Deterministic, err = symmem.ParseFormula(o.Deterministic); err != nil {
			return out, err
		}
	}
	if o.Check != "" {
		out.Check, err = symmem.ParseCheckLevel(o.Check)
	}
	return out, err
}

const maxMilliseconds = 24 * 60 * 60 * 1000 // one day

func parseMilliseconds(name string, value int64) (time.Duration, error) {
	if value < 0 || value > maxMilliseconds {
		return 0, fmt.Errorf("%s is %d; want 0 to %d: %w", name, value, maxMilliseconds,
			symmem.ErrInvalid)
	}
	return time.Duration(value) * time.Millisecond, nil
}

func (o PoolOptions) withDomain(domain *symmem.Group) (symmem.PoolOptions, error) {
	out := symmem.PoolOptions{
		Domain: domain, Capacity: o.Capacity, FirstSegment: o.FirstSegment,
	}
	if o.Placement == "" {
		return out, nil
	}
	var err error
	out.Placement, err = symmem.ParsePlacement(o.Placement)
	return out, err
}

// shouldRecordCallSites returns the option callsites or, if it is absent, the setting of
// SYMMEM_CALLSITES: a boolean or the maximum number of source lines for a call.
func (o *Options) shouldRecordCallSites() bool {
	if o.CallSites != nil {
		return *o.CallSites
	}
	text := os.Getenv("SYMMEM_CALLSITES")
	if lines, err := strconv.Atoi(text); err == nil {
		return lines > 0
	}
	isEnabled, err := strconv.ParseBool(text)
	return err == nil && isEnabled
}

// defaultMaxProcs is small because many ranks may share a machine, and the caller's threads need
// processors as well.
const defaultMaxProcs = 2

func (o *Options) setMaxProcs() {
	procs := o.GoMaxProcs
	if procs <= 0 {
		procs, _ = strconv.Atoi(os.Getenv("SYMMEM_GOMAXPROCS")) // 0 if it is not a number
	}
	if procs <= 0 {
		procs = min(defaultMaxProcs, runtime.NumCPU())
	}
	runtime.GOMAXPROCS(procs)
}

func (o *Options) setEnvironment() error {
	for name, value := range o.Environment {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting %q: %w: %w", name, err, symmem.ErrInvalid)
		}
	}
	return nil
}
