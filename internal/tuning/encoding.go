package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// meaning is written into every table, for who opens it.
const meaning = "A collective whose larger buffer has up to up_to bytes takes the path of that " +
	"step, the last step holds all larger sizes, and otherwise is the path where there is no rule. " +
	"Rules with memory are asked first, whether a call on symmetric or on any buffers goes direct, " +
	"if it can; one without operation is about all that have none of their own, and other leaves " +
	"it to the rules without memory. " +
	"A rule with data_type is about elements of that type, one without about all types that have " +
	"none of their own. " +
	"A rule with in_place is only about calls that work in place (true) or only about the others " +
	"(false). Only these decide; measured says why, and measured_type with which type where the " +
	"rule has none. All ranks need the same table."

// tableWire, ruleWire, stepWire and pointWire are what is in a file.
type tableWire struct {
	Version   int        `json:"version"`
	About     string     `json:"about"`
	Device    string     `json:"device"`
	Library   string     `json:"library"`
	Date      string     `json:"date"`
	Source    string     `json:"source"`
	Otherwise Path       `json:"otherwise"`
	Rules     []ruleWire `json:"rules"`
}

type ruleWire struct {
	Operation string     `json:"operation"`
	DataType  string     `json:"data_type"`
	OfType    string     `json:"measured_type"`
	Ranks     int        `json:"ranks"`
	Machines  int        `json:"machines"`
	Memory    Memory     `json:"memory"`
	InPlace   Half       `json:"in_place"`
	Steps     []stepWire `json:"steps"`
}

type stepWire struct {
	UpTo     Size        `json:"up_to,omitempty"`
	Path     Path        `json:"path"`
	Measured []pointWire `json:"measured"`
}

type pointWire struct {
	Bytes        Size    `json:"bytes"`
	PlainUS      float64 `json:"plain_us"`
	WindowUS     float64 `json:"window_us"`
	DirectUS     float64 `json:"direct_us"`
	NoisePercent float64 `json:"noise_percent,omitempty"`
	InPlace      bool    `json:"in_place,omitempty"`
}

// Encode writes the table as JSON with one step and one measured size a line. The rules are sorted,
// so equal tables are written alike.
func (t *Table) Encode() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}
	w := &writer{}
	w.raw("{\n  \"version\": ").value(Version)
	w.raw(",\n  \"about\": ").value(meaning)
	w.raw(",\n  \"device\": ").value(t.Device)
	w.raw(",\n  \"library\": ").value(t.Library)
	w.raw(",\n  \"date\": ").value(t.Date)
	w.raw(",\n  \"source\": ").value(t.Source)
	w.raw(",\n  \"otherwise\": ").value(t.Otherwise)
	w.raw(",\n  \"rules\": [")
	for i, r := range sorted(t.Rules) {
		w.comma(i).raw("\n    ").rule(&r)
	}
	w.raw("\n  ]\n}\n")
	return w.out.Bytes(), w.err
}

// writer lays JSON out, and keeps the first error.
type writer struct {
	out bytes.Buffer
	err error
}

func (w *writer) raw(text string) *writer {
	w.out.WriteString(text)
	return w
}

func (w *writer) comma(i int) *writer {
	if i > 0 {
		w.raw(",")
	}
	return w
}

func (w *writer) value(v any) *writer {
	encoded, err := json.Marshal(v)
	w.err = errors.Join(w.err, err)
	w.out.Write(encoded)
	return w
}

func (w *writer) rule(r *Rule) {
	w.raw("{")
	if !r.calls().general() {
		w.raw(`"operation": `).value(r.Operation)
		if r.DataType != "" {
			w.raw(`, "data_type": `).value(r.DataType)
		}
		w.raw(`, "ranks": `).value(r.Ranks).raw(`, "machines": `).value(r.Machines).raw(", ")
	}
	if r.Memory != "" {
		w.raw(`"memory": `).value(r.Memory).raw(", ")
	}
	if r.MeasuredType != "" {
		w.raw(`"measured_type": `).value(r.MeasuredType).raw(", ")
	}
	if r.Half != BothHalves {
		w.raw(`"in_place": `).value(r.Half == InPlace).raw(", ")
	}
	w.raw(`"steps": [`)
	for i := range r.Steps {
		w.comma(i).raw("\n      ").step(&r.Steps[i])
	}
	w.raw("\n    ]}")
}

func (w *writer) step(s *Step) {
	w.raw("{")
	if s.UpTo != 0 {
		w.raw(`"up_to": `).value(s.UpTo).raw(", ")
	}
	w.raw(`"path": `).value(s.Path).raw(`, "measured": [`)
	for i, p := range s.Measured {
		w.comma(i).raw("\n        ").point(p)
	}
	if len(s.Measured) > 0 {
		w.raw("\n      ")
	}
	w.raw("]}")
}

func (w *writer) point(p Point) {
	w.raw(`{"bytes": `).value(p.Bytes)
	if p.InPlace {
		w.raw(`, "in_place": `).value(p.InPlace)
	}
	w.raw(`, "plain_us": `).value(p.PlainUS)
	if p.WindowUS != 0 {
		w.raw(`, "window_us": `).value(p.WindowUS)
	}
	if p.DirectUS != 0 {
		w.raw(`, "direct_us": `).value(p.DirectUS)
	}
	if p.NoisePercent != 0 {
		w.raw(`, "noise_percent": `).value(p.NoisePercent)
	}
	w.raw("}")
}

// versionWire is read first: the other fields depend on the version.
type versionWire struct {
	Version *int `json:"version"`
}

// Decode reads a table. It refuses fields that it does not know, and what Validate refuses.
func Decode(encoded []byte) (*Table, error) {
	var format versionWire
	if err := json.Unmarshal(encoded, &format); err != nil {
		return nil, at(encoded, -1, err)
	}
	switch {
	case format.Version == nil:
		return nil, errors.New("no version is given, so this is no tuning table")
	case *format.Version != Version:
		return nil, fmt.Errorf("version is %d, but this program reads %d", *format.Version, Version)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.DisallowUnknownFields()
	var wire tableWire
	if err := decoder.Decode(&wire); err != nil {
		return nil, at(encoded, decoder.InputOffset(), err)
	}
	t := wire.table()
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return t, nil
}

// at puts the line in front of an error of decoding that says where it arose; offset is used for
// one that does not, unless it is negative.
func at(encoded []byte, offset int64, err error) error {
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &wrongType):
		offset = wrongType.Offset
	}
	if offset < 0 {
		return err
	}
	offset = min(offset, int64(len(encoded)))
	return fmt.Errorf("line %d: %w", 1+bytes.Count(encoded[:offset], []byte("\n")), err)
}

func (w *tableWire) table() *Table {
	t := &Table{
		Device: w.Device, Library: w.Library, Date: w.Date, Source: w.Source, Otherwise: w.Otherwise,
	}
	for _, r := range w.Rules {
		rule := Rule{
			Operation: r.Operation, DataType: r.DataType, MeasuredType: r.OfType,
			Shape: Shape{Ranks: r.Ranks, Machines: r.Machines}, Memory: r.Memory, Half: r.InPlace,
		}
		for _, s := range r.Steps {
			step := Step{UpTo: s.UpTo, Path: s.Path}
			for _, p := range s.Measured {
				step.Measured = append(step.Measured, Point(p))
			}
			rule.Steps = append(rule.Steps, step)
		}
		t.Rules = append(t.Rules, rule)
	}
	return t
}
