package plain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// readJSON reads one JSON value and pushes it. It returns an error if anything but white space
// follows the value.
func (m *machine) readJSON(in *input) error {
	decoder := json.NewDecoder(in.r)
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err == nil {
			err = m.addJSONToken(token)
		} else {
			err = jsonError(err, decoder.InputOffset())
		}
		if err != nil {
			return err
		}
		if len(m.marks) == 0 { // the value is complete
			break
		}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return formatError("it goes on after its end at byte %d", decoder.InputOffset())
	}
	return nil
}

// jsonError converts an error of the JSON decoder at an offset to an error for the user.
func jsonError(err error, offset int64) error {
	syntaxError := (*json.SyntaxError)(nil)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return formatError("it is cut off after %d bytes", offset)
	case errors.As(err, &syntaxError):
		return formatError("it is neither JSON nor a pickle of protocol 2 to 5: byte %d: %v",
			syntaxError.Offset, err)
	}
	return fmt.Errorf("reading JSON: %w", err)
}

// addJSONToken pushes the value of a token, or executes the operation of a delimiter. A number
// that is not an int64 becomes a float.
func (m *machine) addJSONToken(token json.Token) error {
	switch t := token.(type) {
	case json.Delim:
		return m.addJSONDelimiter(t)
	case string:
		v, err := m.doc.findOrAddString([]byte(t))
		if err != nil {
			return err
		}
		return m.push(v)
	case json.Number:
		if n, err := strconv.ParseInt(string(t), 10, 64); err == nil {
			return m.push(intValue(n))
		}
		f, err := t.Float64()
		if err != nil {
			return m.push(makeValue(tagUnsupported, 0))
		}
		return m.push(floatValue(f))
	case bool:
		return m.push(boolValue(t))
	}
	return m.push(0) // null is None
}

// addJSONDelimiter begins or ends an object or an array.
func (m *machine) addJSONDelimiter(d json.Delim) error {
	var err error
	switch d {
	case '{':
		err = m.pushDict()
	case '[':
		err = m.pushList()
	case '}':
		return m.appendToDict()
	default: // ']'
		return m.appendToList()
	}
	if err != nil {
		return err
	}
	return m.addMark()
}
