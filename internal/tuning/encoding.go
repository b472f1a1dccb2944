package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

const formatText = "A collective whose larger buffer has up to up_to bytes takes the path of " +
	"that step; the last step covers all larger sizes. otherwise is the path of calls without a " +
	"rule. Rules with memory decide first, whether a call on symmetric or on any buffers takes " +
	"the direct path if it can; one without operation covers all operations without a rule of " +
	"their own, and other leaves the choice to the rules without memory. Everything else, such " +
	"as the measured times, explains the rules. All ranks need the same table."

type file struct {
	Version int    `json:"version"`
	About   string `json:"about"`
	*Table
}

// flatObject matches an object that spans several lines and contains no other object or list. It
// relies on the fact that strings in JSON contain no newlines.
var flatObject = regexp.MustCompile(`\{\n[^{}\[\]]*\n\s*\}`)

var lineEnd = regexp.MustCompile(`\n\s*`)

// Encode returns the table as JSON, with one measured size per line and with sorted rules, so that
// equal tables have the same encoding.
func (t *Table) Encode() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}
	ordered := *t
	ordered.Rules = sorted(t.Rules)
	indented, err := json.MarshalIndent(file{Version, formatText, &ordered}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}
	folded := flatObject.ReplaceAllFunc(indented, func(object []byte) []byte {
		return lineEnd.ReplaceAll(object, []byte(" "))
	})
	return append(folded, '\n'), nil
}

type version struct {
	Version *int `json:"version"`
}

// Decode decodes a table. It rejects unknown fields and invalid tables.
func Decode(encoded []byte) (*Table, error) {
	var format version
	if err := json.Unmarshal(encoded, &format); err != nil {
		return nil, addLine(encoded, -1, err)
	}
	switch {
	case format.Version == nil:
		return nil, errors.New("this is not a tuning table: it has no version")
	case *format.Version != Version:
		return nil, fmt.Errorf("version is %d, but this program reads %d: run symmem tune again",
			*format.Version, Version)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.DisallowUnknownFields()
	read := file{Table: &Table{}}
	if err := decoder.Decode(&read); err != nil {
		return nil, addLine(encoded, decoder.InputOffset(), err)
	}
	if err := read.Validate(); err != nil {
		return nil, err
	}
	return read.Table, nil
}

// addLine prefixes a decoding error with its line number. If the error has no position, addLine
// uses offset, unless that is negative.
func addLine(encoded []byte, offset int64, err error) error {
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
