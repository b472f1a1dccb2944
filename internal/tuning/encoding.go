package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
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

// file is what is in a file: a table, after what says how to read it.
type file struct {
	Version int    `json:"version"`
	About   string `json:"about"`
	*Table
}

// flat is an object that holds no other one, over several lines. Strings of JSON have no ends of
// lines.
var flat = regexp.MustCompile(`\{\n[^{}\[\]]*\n\s*\}`)

var lineEnd = regexp.MustCompile(`\n\s*`)

// Encode writes the table as JSON with one measured size a line. The rules are sorted, so equal
// tables are written alike.
func (t *Table) Encode() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}
	ordered := *t
	ordered.Rules = sorted(t.Rules)
	indented, err := json.MarshalIndent(file{Version, meaning, &ordered}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}
	folded := flat.ReplaceAllFunc(indented, func(object []byte) []byte {
		return lineEnd.ReplaceAll(object, []byte(" "))
	})
	return append(folded, '\n'), nil
}

// version is read first: the other fields depend on it.
type version struct {
	Version *int `json:"version"`
}

// Decode reads a table. It refuses fields that it does not know, and what Validate refuses.
func Decode(encoded []byte) (*Table, error) {
	var format version
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
	read := file{Table: &Table{}}
	if err := decoder.Decode(&read); err != nil {
		return nil, at(encoded, decoder.InputOffset(), err)
	}
	if err := read.Validate(); err != nil {
		return nil, err
	}
	return read.Table, nil
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
