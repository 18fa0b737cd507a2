"""The console: pages about a lake for a browser, part of ``tiltyard serve``. Reads; merging branches needs a role.

A request goes down this list, and its page back up:

- ``console_app``: the routes over HTTP: who looks, forms from this site only, sign-in, errors, headers.
- ``console_pages``: every page with its path and its function, as data. ``page_values``: what a page is asked with and comes to.
- ``timeline_page``, ``table_pages``, ``conflict_pages``, ``health_page``, ``branch_pages``, ``pipeline_pages``: what each page shows, as
  plain values; they read, bound what they read, and know nothing of HTML.
- ``merge_answers``: answers to the conflicts of a merge, by table and by row, as the form of ``branch_pages`` brings them.
- ``timeline``: a part of the history as lanes, marks and arrows. ``timeline_svg``: draws it, for a page and for the command line.
  ``plan_svg``: draws the plan of a run.
- ``lake_viewer``: the lake as a principal's roles show it; all pages read through it.
- ``page_rendering``: templates (``templates/``), files (``static/``, htmx among them with its licence), headers against injection.

Nothing here decides about a commit. Errors of the lake become pages with the status that fits; ``PermissionDeniedError`` is 403.
``timeline``, ``timeline_svg`` and ``lake_viewer`` need nothing of the extra ``server``: the command line draws with them.
"""
