"""The two kinds of error that a user can mend; the command turns them into exit codes.

ValueError
  RequestError    a wrong request: arguments, keys, paths, an existing run          exit code 2
  ContentError    content that cannot be used: damaged lines, an empty corpus,      exit code 1
                  nothing left after filters, a damaged hand-off
"""


class RequestError(ValueError):
    """The request is wrong; the text names the argument, key or path and the way out."""


class ContentError(ValueError):
    """The content cannot be used; the text names the file and the row or field."""
