package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// formatText explains the format to users who open a file with a table.
const formatText = "A collective whose larger buffer has up to up_to bytes takes the path of " +
	"that step; the last step covers all larger sizes. otherwise is the path of calls without a " +
	"rule. Rules with memory decide first, whether a call on symmetric or on any buffers takes " +
	"the direct path if it can; one without operation covers all operations without a " +
	"specific rule, and other leaves the choice to the rules without memory. Everything else, such " +
	"as the measured times, explains the rules. All ranks need the same table."

// file is the JSON document with a table.
type file struct {
	Version int    `json:"version"`
	About   string `json:"about"`
	*Table
}

// Encode replaces each lineEnd in a foldableObject by a space. A foldableObject is a JSON object
// on several lines without nested objects or lists.
var (
	foldableObject = regexp.MustCompile(`\{\n[^{}\[\]]*\n\s*\}`)
	lineEnd        = regexp.MustCompile(`\n\s*`)
)

// Encode returns the table as JSON. Equal tables have the same encoding.
func (t *Table) Encode() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}
	sortedTable := *t
	sortedTable.Rules = sorted(t.Rules)
	content := file{Version, formatText, &sortedTable}
	indented, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}
	folded := foldableObject.ReplaceAllFunc(indented, func(object []byte) []byte {
		return lineEnd.ReplaceAll(object, []byte(" "))
	})
	return append(folded, '\n'), nil
}

// version is the part of a file that Decode reads first.
type version struct {
	Version *int `json:"version"` // nil without a version
}

// Decode returns the table in a JSON document from Encode. It rejects other versions, unknown
// fields and invalid tables.
func Decode(encoded []byte) (*Table, error) {
	var format version
	if err := json.Unmarshal(encoded, &format); err != nil {
		return nil, addLineNumber(encoded, -1, err)
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
	decoded := file{Table: &Table{}}
	if err := decoder.Decode(&decoded); err != nil {
		return nil, addLineNumber(encoded, decoder.InputOffset(), err)
	}
	if err := decoded.Validate(); err != nil {
		return nil, err
	}
	return decoded.Table, nil
}

// addLineNumber adds the line of a decoding error to err. For errors without a position, it uses
// the offset in bytes, unless offset is negative.
func addLineNumber(encoded []byte, offset int64, err error) error {
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
